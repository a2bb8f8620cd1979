"""kube-proxy's iptables mode, as rules: a chain of all Services that new connections walk in order, then a chain for
each Service and one for each endpoint. As kube-proxy loads them where there are more than 1,000 endpoints: without
comments, which take memory that the walk would have to read.
"""

from __future__ import annotations

from collections.abc import Iterator

from devtools.bench import objects

_FILTER = """*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-FORWARD - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A INPUT -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
"""


def restore_text(services: int) -> str:
    """Return input of iptables-restore; every Service has one endpoint."""
    return _FILTER + "\n".join(_nat(services)) + "\n"


def _nat(services: int) -> Iterator[str]:
    yield "*nat"
    yield ":KUBE-SERVICES - [0:0]"
    yield ":KUBE-NODEPORTS - [0:0]"
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
        address, endpoint = objects.service_address(number), objects.endpoint_address(number, 1)
        here = f"-d {address}/32 -p tcp -m tcp --dport 80"
        yield f"-A KUBE-SERVICES {here} -j KUBE-SVC-{number:016d}"
        yield f"-A KUBE-SVC-{number:016d} {here} ! -s {objects.CLUSTER_CIDR} -j KUBE-MARK-MASQ"
        yield f"-A KUBE-SVC-{number:016d} -j KUBE-SEP-{number:016d}"
        yield f"-A KUBE-SEP-{number:016d} -s {endpoint}/32 -j KUBE-MARK-MASQ"
        yield f"-A KUBE-SEP-{number:016d} -p tcp -m tcp -j DNAT --to-destination {endpoint}:8080"
    yield "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"
    yield "COMMIT"
