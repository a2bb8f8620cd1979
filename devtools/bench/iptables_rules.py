"""kube-proxy's iptables mode, as rules: KUBE-SERVICES, then a chain for each Service and one for each endpoint."""

from __future__ import annotations

from collections.abc import Iterator

from devtools.bench import objects


def restore_text(services: int, last_endpoint: str) -> str:
    """Return input of iptables-restore; every Service has one endpoint, the last one has last_endpoint."""
    return "\n".join(_lines(services, last_endpoint)) + "\n"


def _lines(services: int, last_endpoint: str) -> Iterator[str]:
    yield "*nat"
    yield ":KUBE-SERVICES - [0:0]"
    yield ":KUBE-MARK-MASQ - [0:0]"
    yield ":KUBE-POSTROUTING - [0:0]"
    for number in range(services):
        yield f":KUBE-SVC-{number:016d} - [0:0]"
        yield f":KUBE-SEP-{number:016d} - [0:0]"
    yield "-A PREROUTING -j KUBE-SERVICES"
    yield "-A OUTPUT -j KUBE-SERVICES"
    yield "-A POSTROUTING -j KUBE-POSTROUTING"
    yield "-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000"
    yield "-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN"
    yield "-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000"
    yield "-A KUBE-POSTROUTING -j MASQUERADE --random-fully"
    for number in range(services):
        address = objects.service(number)["spec"]["clusterIP"]
        endpoint = last_endpoint
        if number != services - 1:
            endpoint = objects.endpointslice(number, 1)["endpoints"][0]["addresses"][0]
        yield f"-A KUBE-SERVICES -d {address}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-{number:016d}"
        yield f"-A KUBE-SVC-{number:016d} ! -s {objects.CLUSTER_CIDR} -d {address}/32 -p tcp -j KUBE-MARK-MASQ"
        yield f"-A KUBE-SVC-{number:016d} -j KUBE-SEP-{number:016d}"
        yield f"-A KUBE-SEP-{number:016d} -s {endpoint}/32 -j KUBE-MARK-MASQ"
        yield f"-A KUBE-SEP-{number:016d} -p tcp -m tcp -j DNAT --to-destination {endpoint}:8080"
    yield "COMMIT"
