"""The network of one case: a star of namespaces around the node under test.

::

    client or endpoint --- veth ---+
    client or endpoint --- veth --- node --- uplink --- beyond
    ...                            |                    (owns every other probed address)

No switch and no router joins the leaves, so a reply returns through the node even where the client's address was kept.
A leaf is one address, or all addresses that arrive by one named interface. Both ends of a pair share one MAC address
and are NOARP: nothing has to be resolved.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from devtools.conformance.corpus import Case, SocketAddress, family, slice_endpoints
from devtools.conformance.netns import NetworkNamespace

EVERYWHERE = ("0.0.0.0/0", "::/0")
Leaf = str
"""Name of the node's end of the pair."""


@dataclass
class Layout:
    """Who owns which address; pure, so that it can be tested without a kernel."""

    node: tuple[str, ...]
    uplink: str
    leaves: dict[Leaf, list[str]] = field(default_factory=dict)
    beyond: list[str] = field(default_factory=list)

    def leaves_of(self, ip: str) -> list[Leaf]:
        return [leaf for leaf, addresses in self.leaves.items() if ip in addresses]


def is_loopback(ip: str) -> bool:
    return ipaddress.ip_address(ip).is_loopback


def layout(case: Case, doubles: Mapping[str, list[str]]) -> Layout:
    """Decide which namespace owns each address of a case.

    doubles: further addresses of the client with the given address (see population.py).
    """
    plan = Layout(node=case.node.addresses, uplink=_name_base(case) + "-up")
    clients = [probe.client for probe in case.probes]
    used = {SocketAddress(str(ep.ip), ep.port).ip for probe in case.probes for ep in probe.expect.endpoints}
    base = plan.uplink.removesuffix("-up")
    for client in clients:
        if client.interface is not None and not client.on_node:
            addresses = plan.leaves.setdefault(client.interface, [])
            addresses.extend(ip for ip in [client.ip, *doubles.get(client.ip, [])] if ip not in addresses)
    for ip in dict.fromkeys([client.ip for client in clients if not client.on_node] + sorted(used)):
        if ip not in plan.node and not is_loopback(ip) and not plan.leaves_of(ip):
            plan.leaves[f"{base}{len(plan.leaves)}"] = [ip, *doubles.get(ip, [])]
    probed = [probe.to.ip for probe in case.probes] + [ep.ip for ep, _ in slice_endpoints(case.manifests)]
    for ip in dict.fromkeys(probed):
        if ip not in plan.node and not is_loopback(ip) and not plan.leaves_of(ip):
            plan.beyond.append(ip)
    return plan


def _name_base(case: Case) -> str:
    """What our own interface names begin with: never what the case takes for a pod's interface."""
    prefix = str(case.config.get("interfaceNamePrefix") or "")
    return "kp" if not prefix or not prefix.startswith("k") else "zz"


def _cidr(ip: str) -> str:
    return f"{ip}/128" if ":" in ip else f"{ip}/32"


def _mac(number: int) -> str:
    return f"02:6b:70:00:{number >> 8:02x}:{number & 255:02x}"


class World:
    """The layout made real."""

    def __init__(self, plan: Layout) -> None:
        self.plan = plan
        self.node = NetworkNamespace()
        self.beyond = NetworkNamespace()
        self.leaves = {leaf: NetworkNamespace() for leaf in plan.leaves}
        self._routed_over: dict[str, Leaf] = {}
        self._settle_node()
        self._connect()

    def _settle_node(self) -> None:
        # rp_filter before links exist: new ones copy `default`. Without the icmp limits rejects turn into silence.
        for name, value in (
            ("ipv4.ip_forward", "1"),
            ("ipv6.conf.all.forwarding", "1"),
            ("ipv4.conf.all.rp_filter", "0"),
            ("ipv4.conf.default.rp_filter", "0"),
            ("ipv6.conf.default.accept_dad", "0"),
            ("ipv6.conf.all.accept_dad", "0"),
            ("ipv4.icmp_ratelimit", "0"),
            ("ipv6.icmp.ratelimit", "0"),
            ("ipv4.icmp_msgs_per_sec", "100000"),
        ):
            self.node.sysctl(name, value)

    def _connect(self) -> None:
        node = ["link set lo up"]
        for number, (leaf, namespace) in enumerate([(self.plan.uplink, self.beyond), *self.leaves.items()]):
            ends = f"address {_mac(number)} arp off"
            # The peer goes up later, from its own namespace: a veth cannot before the pair exists.
            node.append(f"link add dev {leaf} {ends} up type veth peer name eth0 {ends} netns {namespace.path}")
        for ip in self.plan.node:
            node.append(f"addr add {_cidr(ip)} dev {self.plan.uplink}" + (" nodad" if family(ip) == 6 else ""))
        node += [f"route add {everywhere} dev {self.plan.uplink}" for everywhere in EVERYWHERE]
        for leaf, addresses in self.plan.leaves.items():
            for ip in addresses:
                if ip not in self._routed_over:
                    self._routed_over[ip] = leaf
                    node.append(self._route("add", ip, leaf))
        self.node.ip(node)
        self._settle_leaf(self.beyond, self.plan.beyond, "lo")
        for leaf, namespace in self.leaves.items():
            self._settle_leaf(namespace, self.plan.leaves[leaf], "eth0")

    @staticmethod
    def _route(verb: str, ip: str, leaf: Leaf) -> str:
        return f"route {verb} {_cidr(ip)} dev {leaf}"

    @staticmethod
    def _settle_leaf(namespace: NetworkNamespace, addresses: Iterable[str], device: str) -> None:
        lines = ["link set lo up", "link set eth0 up"]
        for ip in addresses:
            lines.append(f"addr add {_cidr(ip)} dev {device}" + (" nodad" if family(ip) == 6 else ""))
        lines += [f"route add {everywhere} dev eth0" for everywhere in EVERYWHERE]
        namespace.sysctl("ipv4.conf.all.rp_filter", "0")
        namespace.sysctl("ipv4.icmp_ratelimit", "0")
        namespace.sysctl("ipv6.icmp.ratelimit", "0")
        namespace.ip(lines)

    def route_over(self, ip: str, leaf: Leaf) -> None:
        """Make the node reach a client by the interface its next packet comes from."""
        if self._routed_over.get(ip) != leaf:
            self.node.ip([self._route("replace", ip, leaf)])
            self._routed_over[ip] = leaf

    def owner(self, ip: str) -> list[NetworkNamespace]:
        """The namespaces that hold an address; several where it arrives by several interfaces."""
        if ip in self.plan.node or is_loopback(ip):
            return [self.node]
        leaves = self.plan.leaves_of(ip)
        return [self.leaves[leaf] for leaf in leaves] if leaves else [self.beyond]

    def client_namespace(self, ip: str, on_node: bool, interface: str | None) -> NetworkNamespace:
        if on_node:
            return self.node
        leaf = interface if interface is not None else self.plan.leaves_of(ip)[0]
        self.route_over(ip, leaf)
        return self.leaves[leaf]

    def close(self) -> None:
        for namespace in (self.node, self.beyond, *self.leaves.values()):
            namespace.close()
