"""kube-proxy-shaped rules for a folder of Services, IPv4 and TCP alone: enough to carry connections."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

MARK = "0x4000/0x4000"
# The jumps from built-in chains: table, chain, rule.
JUMPS = (
    ("filter", "FORWARD", '-m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD'),
    (
        "filter",
        "FORWARD",
        '-m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES',
    ),
    ("nat", "PREROUTING", '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'),
    ("nat", "OUTPUT", '-m comment --comment "kubernetes service portals" -j KUBE-SERVICES'),
    ("nat", "POSTROUTING", '-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING'),
)

_NFT_FIRST = """
  chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
  chain reject-chain { reject; }
"""
_NFT_LAST = """
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
    ip daddr != 127.0.0.0/8 fib daddr type local meta l4proto . th dport vmap @service-nodeports
  }
  chain masquerading {
    ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
    meta mark & 0x4000 == 0 return
    meta mark set meta mark ^ 0x4000
    masquerade fully-random
  }
  chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
  chain cluster-ips-check { ip daddr @cluster-ips reject; }
  chain filter-input { type filter hook input priority 0; ct state new jump service-endpoints-check; }
  chain filter-forward {
    type filter hook forward priority 0
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain filter-output {
    type filter hook output priority 0
    ct state new jump service-endpoints-check
    ct state new jump cluster-ips-check
  }
  chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
"""


class Port(NamedTuple):
    """One service port and its endpoints as `address:port`."""

    name: str
    cluster_ip: str
    port: int
    node_port: int
    endpoints: tuple[str, ...]

    @property
    def hash(self) -> str:
        """The part of a chain's name that kube-proxy makes of the service port's name."""
        return base64.b32encode(hashlib.sha256(f"{self.name}tcp".encode()).digest()).decode()[:16]


def _endpoints(objects: Iterable[Mapping[str, Any]], service: Mapping[str, Any], port: Mapping[str, Any]) -> list[str]:
    metadata = service["metadata"]
    return [
        f"{endpoint['addresses'][0]}:{entry['port']}"
        for item in objects
        if item["kind"] == "EndpointSlice"
        and item["addressType"] == "IPv4"
        and item["metadata"]["namespace"] == metadata["namespace"]
        and item["metadata"]["labels"]["kubernetes.io/service-name"] == metadata["name"]
        for entry in item["ports"]
        if entry.get("name") == port.get("name") and entry.get("protocol", "TCP") == "TCP"
        for endpoint in item["endpoints"]
    ]


def ports(objects: list[dict[str, Any]]) -> list[Port]:
    """Return the TCP ports of the Services that have an IPv4 cluster IP."""
    return [
        Port(
            f"{item['metadata']['namespace']}/{item['metadata']['name']}:{port.get('name', '')}",
            item["spec"]["clusterIP"],
            port["port"],
            port.get("nodePort", 0),
            tuple(_endpoints(objects, item, port)),
        )
        for item in objects
        if item["kind"] == "Service" and "." in str(item["spec"].get("clusterIP"))
        for port in item["spec"]["ports"]
        if port.get("protocol", "TCP") == "TCP"
    ]


def _service_chains(port: Port) -> list[str]:
    service = f"KUBE-SVC-{port.hash}"
    lines = [f"-A {service} ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ"]
    for number, endpoint in enumerate(port.endpoints):
        left = len(port.endpoints) - number
        chance = f"-m statistic --mode random --probability {1 / left:.11f} " if left > 1 else ""
        chain = f"KUBE-SEP-{Port(endpoint, '', 0, 0, ()).hash}"
        lines.append(f'-A {service} -m comment --comment "{port.name} -> {endpoint}" {chance}-j {chain}')
    return lines


def iptables(found: Iterable[Port]) -> str:
    """Return text for `iptables-restore --noflush`: every chain but not the jumps from the built-in ones."""
    with_endpoints = [port for port in found if port.endpoints]
    endpoints = sorted({endpoint for port in with_endpoints for endpoint in port.endpoints})
    nat = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-PROXY-CANARY"]
    nat += [f"KUBE-SVC-{port.hash}" for port in with_endpoints]
    nat += [f"KUBE-SEP-{Port(endpoint, '', 0, 0, ()).hash}" for endpoint in endpoints]
    lines = ["*mangle", ":KUBE-PROXY-CANARY - [0:0]", "COMMIT", "*filter"]
    lines += [f":{chain} - [0:0]" for chain in ("KUBE-FORWARD", "KUBE-SERVICES", "KUBE-PROXY-CANARY")]
    lines += [f'-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark {MARK} -j ACCEPT']
    lines += ["-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "COMMIT", "*nat"]
    lines += [f":{chain} - [0:0]" for chain in nat]
    lines += [f"-A KUBE-MARK-MASQ -j MARK --set-xmark {MARK}"]
    lines += [f"-A KUBE-POSTROUTING -m mark ! --mark {MARK} -j RETURN"]
    lines += ["-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0", "-A KUBE-POSTROUTING -j MASQUERADE --random-fully"]
    for endpoint in endpoints:
        chain = f"KUBE-SEP-{Port(endpoint, '', 0, 0, ()).hash}"
        lines += [f"-A {chain} -s {endpoint.partition(':')[0]}/32 -j KUBE-MARK-MASQ"]
        lines += [f"-A {chain} -p tcp -m tcp -j DNAT --to-destination {endpoint}"]
    for port in with_endpoints:
        lines += _service_chains(port)
        lines += [f"-A KUBE-SERVICES -d {port.cluster_ip}/32 -p tcp -m tcp --dport {port.port} -j KUBE-SVC-{port.hash}"]
        if port.node_port:
            lines += [f"-A KUBE-NODEPORTS -p tcp -m tcp --dport {port.node_port} -j KUBE-MARK-MASQ"]
            lines += [f"-A KUBE-NODEPORTS -p tcp -m tcp --dport {port.node_port} -j KUBE-SVC-{port.hash}"]
    lines += ["-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS", "COMMIT"]
    return "".join(line + "\n" for line in lines)


def nftables(found: Iterable[Port]) -> str:
    """Return the table `ip kube-proxy` of the nftables mode, for `nft -f`; loading it again replaces it.

    Endpoints sit in one map per service port instead of a chain each; hooks, priorities and marks are kube-proxy's.
    """
    known = list(found)
    endpoints = sorted({endpoint for port in known for endpoint in port.endpoints})
    hairpin = [f"{ip} . {ip} . tcp . {number}" for ip, _colon, number in (one.partition(":") for one in endpoints)]
    chains, ips, node_ports, none = "", [], [], []
    for port in known:
        frontend = f"{port.cluster_ip} . tcp . {port.port}"
        if not port.endpoints:
            none.append(f"{frontend} : goto reject-chain")
            continue
        name = f"{port.hash[:8]}-{port.name.replace(':', '/tcp/')}"
        targets = [endpoint.replace(":", " . ") for endpoint in port.endpoints]
        choices = ", ".join(f"{number} : {target}" for number, target in enumerate(targets))
        chains += (
            f"  chain service-{name} {{\n"
            f"    ip daddr {port.cluster_ip} tcp dport {port.port} ip saddr != 10.244.0.0/16 jump mark-for-masquerade\n"
            f"    meta l4proto tcp dnat ip to numgen random mod {len(targets)} map {{ {choices} }}\n  }}\n"
            f"  chain external-{name} {{\n    jump mark-for-masquerade\n    goto service-{name}\n  }}\n"
        )
        ips.append(f"{frontend} : goto service-{name}")
        if port.node_port:
            node_ports.append(f"tcp . {port.node_port} : goto external-{name}")
    address = "ipv4_addr . inet_proto . inet_service : verdict"
    elements = {
        "map service-ips": (address, ips),
        "map service-nodeports": ("inet_proto . inet_service : verdict", node_ports),
        "map no-endpoint-services": (address, none),
        "set hairpin-connections": ("ipv4_addr . ipv4_addr . inet_proto . inet_service", hairpin),
        "set cluster-ips": ("ipv4_addr", sorted({port.cluster_ip for port in known})),
    }
    sets = "".join(
        f"  {name} {{\n    type {types}\n" + (f"    elements = {{ {', '.join(values)} }}\n" if values else "") + "  }\n"
        for name, (types, values) in elements.items()
    )
    table = "table ip kube-proxy"
    return f"{table}\ndelete {table}\n{table} {{\n{sets}{_NFT_FIRST}{chains}{_NFT_LAST}}}\n"


def load_script(mode: str, objects: list[dict[str, Any]]) -> str:
    """Return the shell script with which the stand-in programs a node: mode is legacy, nft or nftables."""
    found = ports(objects)
    if mode == "nftables":
        return f"set -e\nnft -f - <<'END'\n{nftables(found)}END\n"
    tool = f"iptables-{mode}"
    script = f"set -e\n{tool}-restore --noflush <<'END'\n{iptables(found)}END\n"
    for table, chain, rule in JUMPS:
        script += f"{tool} -t {table} -C {chain} {rule} 2>/dev/null || {tool} -t {table} -I {chain} {rule}\n"
    return script
