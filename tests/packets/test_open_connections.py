"""Connections opened through kube-proxy's rules carry bytes after those rules are gone, and new ones use ours.

Client and endpoints sit in namespaces of their own around a node. Both endpoints answer with their name. kube-proxy's
rules translate the service to `old`, ours to `new`, so the answer tells whose rules a connection went through.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from devtools.conformance.netns import NetworkNamespace
from tests.module_run import run_module
from tests.packets.named_endpoint import NamedEndpoint

SERVICE = ("10.96.70.2", 443)
ADDRESSES = {"client": "203.0.113.7", "old": "10.244.2.21", "new": "10.244.3.21"}
ENDPOINT_PORT = 8443
SECONDS = 60.0

IPTABLES = f"""*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-2MZ6QK4YHB5DTN7R - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-7QJ2PLWMZ4AVK3XC - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE
-A KUBE-SEP-2MZ6QK4YHB5DTN7R -p tcp -m tcp -j DNAT --to-destination {ADDRESSES["old"]}:{ENDPOINT_PORT}
-A KUBE-SERVICES -d 10.96.70.2/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-7QJ2PLWMZ4AVK3XC
-A KUBE-SVC-7QJ2PLWMZ4AVK3XC ! -s 10.244.0.0/16 -j KUBE-MARK-MASQ
-A KUBE-SVC-7QJ2PLWMZ4AVK3XC -j KUBE-SEP-2MZ6QK4YHB5DTN7R
COMMIT
"""
NFTABLES = f"""table ip kube-proxy {{
  map service-ips {{
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = {{ 10.96.70.2 . tcp . 443 : goto service }}
  }}
  chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
  chain nat-output {{ type nat hook output priority -100; jump services; }}
  chain nat-postrouting {{ type nat hook postrouting priority 100; ct status dnat masquerade; }}
  chain services {{ ip daddr . meta l4proto . th dport vmap @service-ips; }}
  chain service {{ meta l4proto tcp dnat to {ADDRESSES["old"]}:{ENDPOINT_PORT}; }}
}}
"""

OBJECTS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "edge", "name": "admin"},
        "spec": {"clusterIP": SERVICE[0], "ports": [{"name": "https", "protocol": "TCP", "port": SERVICE[1]}]},
    },
    {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": "edge", "name": "admin-1", "labels": {"kubernetes.io/service-name": "admin"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "protocol": "TCP", "port": ENDPOINT_PORT}],
        "endpoints": [{"addresses": [ADDRESSES["new"]], "conditions": {"ready": True}}],
    },
]


class World:
    """A node with a client and two endpoints, each on a link of its own."""

    def __init__(self) -> None:
        self.node = NetworkNamespace()
        self.leaves = {name: NetworkNamespace() for name in ADDRESSES}
        self.node.ip(["link set lo up"])
        for name, address in ADDRESSES.items():
            leaf = self.leaves[name]
            self.node.ip([f"link add {name} type veth peer name eth0 netns {leaf.path}"])
            self.node.ip([f"link set {name} up", f"route add {address}/32 dev {name}"])
            leaf.ip([f"addr add {address}/32 dev eth0", "link set eth0 up", "route add default dev eth0"])
            self.node.sysctl(f"ipv4.conf.{name}.proxy_arp", "1")
        self.node.ip(["addr add 192.0.2.11/32 dev lo", "route add 10.96.0.0/12 dev lo"])
        self.node.sysctl("ipv4.ip_forward", "1")
        self.endpoints = [
            NamedEndpoint(self.leaves[name], name, ADDRESSES[name], ENDPOINT_PORT) for name in ("old", "new")
        ]

    def dial(self, origin: NetworkNamespace) -> socket.socket:
        with origin.entered():
            return socket.create_connection(SERVICE, timeout=SECONDS)

    def module(self, name: str, **options: Any) -> dict[str, Any]:
        """Run a module of the collection on the node."""
        return run_module(name, options, self.node.joiner())

    def close(self) -> None:
        closed: list[NamedEndpoint | NetworkNamespace] = [*self.endpoints, self.node, *self.leaves.values()]
        for one in closed:
            one.close()


def ask(connection: socket.socket) -> str:
    """Send a byte and return who answered it; empty when nobody did in time."""
    try:
        connection.sendall(b"?")
        return connection.recv(64).decode().partition(" ")[0]
    except (TimeoutError, ConnectionError):
        return ""


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def load_kube_proxy(world: World, mode: str) -> None:
    if mode == "nftables":
        world.node.run(["nft", "-f", "-"], stdin=NFTABLES)
    else:
        world.node.run([f"iptables-{mode}-restore"], stdin=IPTABLES)


@pytest.mark.parametrize("origin", ["client", "node"])
@pytest.mark.parametrize("mode", ["legacy", "nft", "nftables"])
def test_open_connections_survive_the_takeover(world: World, mode: str, origin: str) -> None:
    source = world.node if origin == "node" else world.leaves["client"]
    load_kube_proxy(world, mode)
    with world.dial(source) as opened:
        assert ask(opened) == "old"
        loaded = world.module("nftables", objects=OBJECTS, node_name="n1", config={"clusterCIDR": "10.244.0.0/16"})
        assert loaded["changed"], loaded
        assert ask(opened) == "old"

        removed = world.module("residue")
        assert removed["changed"], removed
        assert not world.module("residue")["changed"]

        assert ask(opened) == "old"
        with world.dial(source) as fresh:
            assert ask(fresh) == "new"
        assert ask(opened) == "old"


def test_without_ours_the_connection_dies_with_the_last_nat_table(world: World) -> None:
    """What the order of the takeover guards against; if this ever passes bytes, the order is no longer needed."""
    load_kube_proxy(world, "nftables")
    with world.dial(world.leaves["client"]) as opened:
        assert ask(opened) == "old"
        world.node.run(["nft", "delete", "table", "ip", "kube-proxy"])
        opened.settimeout(1.0)
        assert ask(opened) == ""
