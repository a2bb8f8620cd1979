"""A canary beside kube-proxy: chosen Services are ours to the last packet, all others stay kube-proxy's.

kube-proxy's rules (the stand-in's, in each of its modes) lead every Service to the endpoint `old`, ours lead the chosen
ones to `new`, so the answer tells whose rules a connection went through. It also names the source the endpoint saw.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from ansible_collections.kproxy.dataplane.plugins.modules import nftables
from devtools.conformance.netns import NetworkNamespace
from devtools.kube_proxy import rules
from tests.module_run import run_module
from tests.packets.named_endpoint import NamedEndpoint

OUTSIDER, POD, OLD, NEW = "203.0.113.7", "10.244.1.9", "10.244.2.21", "10.244.3.21"
LEAVES = {"outside": OUTSIDER, "pod": POD, "old": OLD, "new": NEW}
NODE = "192.0.2.11"
PORT = 8443
SECONDS = 60.0
ORIGINS = ["outside", "pod", "node"]
MODES = ["legacy", "nft", "nftables"]

#: Services: name, cluster IP, NodePort, what ours leads to.
OURS, THEIRS, EMPTY = "10.96.70.2", "10.96.70.3", "10.96.70.4"
CANARY = {"selector": "canary=yes"}
CONFIG = {"clusterCIDR": "10.244.0.0/16", "nodePortAddresses": ["all"]}


def service(name: str, cluster_ip: str, node_port: int, endpoint: str, **labels: str) -> list[dict[str, Any]]:
    metadata = {"namespace": "edge", "name": name, "labels": labels}
    port = {"name": "https", "protocol": "TCP", "port": 443, "nodePort": node_port}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata,
         "spec": {"type": "NodePort", "clusterIP": cluster_ip, "ports": [port]}},
        {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
         "metadata": {"namespace": "edge", "name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
         "addressType": "IPv4",
         "ports": [{"name": "https", "protocol": "TCP", "port": PORT}],
         "endpoints": [{"addresses": [endpoint], "conditions": {"ready": True}}] if endpoint else []},
    ]  # fmt: skip


def objects(endpoint: str, empty: str) -> list[dict[str, Any]]:
    """Return what kube-proxy or we know: three Services, two of them chosen, one of these without endpoints for us."""
    return [
        *service("ours", OURS, 30002, endpoint, canary="yes"),
        *service("theirs", THEIRS, 30003, endpoint),
        *service("empty", EMPTY, 30004, empty, canary="yes"),
        {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
         "spec": {"cidrs": ["10.96.0.0/12"]}},
    ]  # fmt: skip


class Answer(NamedTuple):
    """Who answered, and the source address that it saw."""

    name: str
    source: str


class World:
    """A node between an outsider, a pod of its own and the two endpoints, each on a link of its own."""

    def __init__(self, stack: ExitStack) -> None:
        self.node = NetworkNamespace()
        stack.callback(self.node.close)
        self.leaves: dict[str, NetworkNamespace] = {}
        self.node.ip(["link set lo up", f"addr add {NODE}/32 dev lo", "route add 10.96.0.0/12 dev lo"])
        self.node.sysctl("ipv4.ip_forward", "1")
        for name, address in LEAVES.items():
            leaf = self.leaves[name] = NetworkNamespace()
            stack.callback(leaf.close)
            self.node.ip([f"link add {name} type veth peer name eth0 netns {leaf.path}"])
            self.node.ip([f"link set {name} up", f"route add {address}/32 dev {name}"])
            leaf.ip([f"addr add {address}/32 dev eth0", "link set eth0 up", "route add default dev eth0"])
            self.node.sysctl(f"ipv4.conf.{name}.proxy_arp", "1")
        for name in ("old", "new"):
            stack.callback(NamedEndpoint(self.leaves[name], name, LEAVES[name], PORT).close)

    def origin(self, name: str) -> NetworkNamespace:
        return self.node if name == "node" else self.leaves[name]

    def dial(self, origin: str, address: str, port: int = 443) -> socket.socket:
        with self.origin(origin).entered():
            return socket.create_connection((address, port), timeout=SECONDS)

    def ask(self, origin: str, address: str, port: int = 443) -> Answer:
        with self.dial(origin, address, port) as connection:
            return ask(connection)

    def module(self, name: str, **options: Any) -> dict[str, Any]:
        """Run a module of the collection on the node."""
        return run_module(name, options, self.node.joiner())

    def nftables(self, known: list[dict[str, Any]], canary: dict[str, Any] | None) -> bool:
        """Do on the node what the module does; return whether anything changed."""
        with self.node.entered():
            options = {"objects": known, "node_name": "n1", "config": CONFIG, "canary": canary}
            return bool(nftables.present(options, False)["changed"])

    def program(self, empty: str = "") -> bool:
        return self.nftables(objects(NEW, empty), CANARY)

    def end(self) -> bool:
        with self.node.entered():
            return bool(nftables.absent({"node_name": "n1", "config": {}, "canary": CANARY}, False)["changed"])

    def kube_proxy(self, mode: str) -> None:
        self.node.run(["sh", "-c", rules.load_script(mode, objects(OLD, OLD))])

    def tables(self) -> str:
        return self.node.run(["nft", "list", "tables"])

    def kube_proxys_rules(self, mode: str) -> list[str]:
        dump = ["nft", "list", "table", "ip", "kube-proxy"] if mode == "nftables" else [f"iptables-{mode}-save"]
        # Counters of built-in policies count on.
        return [line.partition(" [")[0] for line in self.node.run(dump).splitlines() if not line.startswith("#")]


def ask(connection: socket.socket) -> Answer:
    """Send a byte and return who answered it, and whom that saw; empty when nobody did in time."""
    try:
        connection.sendall(b"?")
        name, _space, source = connection.recv(64).decode().partition(" ")
        return Answer(name, source)
    except (TimeoutError, ConnectionError):
        return Answer("", "")


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as stack:
        yield World(stack)


@pytest.mark.parametrize("mode", MODES)
def test_the_chosen_are_ours_and_the_rest_is_kube_proxys(world: World, mode: str) -> None:
    world.kube_proxy(mode)
    before = world.kube_proxys_rules(mode)
    assert world.program()
    assert not world.program()
    assert world.kube_proxys_rules(mode) == before
    for name, ip, node_port, endpoint in (("ours", OURS, 30002, "new"), ("theirs", THEIRS, 30003, "old")):
        # Pods keep their address, everybody else is masqueraded: by whose mark and rule cannot be told, nor matters.
        assert world.ask("pod", ip) == (endpoint, POD), name
        for origin in ("outside", "node"):
            answer = world.ask(origin, ip)
            assert answer.name == endpoint, (name, origin)
            assert answer.source != OUTSIDER, name
        outside = world.ask("outside", NODE, node_port)
        assert outside.name == endpoint, name
        assert outside.source != OUTSIDER, name
        assert world.ask("pod", NODE, node_port).name == endpoint, name
        assert world.ask("node", NODE, node_port).name == endpoint, name


@pytest.mark.parametrize("mode", MODES)
def test_a_chosen_service_that_ours_refuses_is_not_led_on_by_kube_proxy(world: World, mode: str) -> None:
    world.kube_proxy(mode)
    assert {world.ask(origin, EMPTY).name for origin in ORIGINS} == {"old"}
    world.program()
    for origin in ORIGINS:
        for address, port in ((EMPTY, 443), (NODE, 30004)):
            with pytest.raises(ConnectionRefusedError):
                world.dial(origin, address, port)
    assert {world.ask(origin, THEIRS).name for origin in ORIGINS} == {"old"}
    world.program(empty=NEW)
    assert {world.ask(origin, EMPTY).name for origin in ORIGINS} == {"new"}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_undefined_is_refused_for_the_chosen_alone(world: World, mode: str) -> None:
    """Ports that a chosen cluster IP lacks are refused; an unused address of the range is not ours to drop."""
    world.kube_proxy(mode)
    world.program()
    with pytest.raises(ConnectionRefusedError):
        world.dial("outside", OURS, 81)
    filters = world.node.run(["nft", "list", "set", "ip", "kproxy-canary", "cluster-ips"])
    assert OURS in filters
    assert THEIRS not in filters
    assert "elements" not in world.node.run(["nft", "list", "set", "ip", "kproxy-canary", "service-cidrs"])


@pytest.mark.parametrize("mode", MODES)
def test_open_connections_survive_both_ways(world: World, mode: str) -> None:
    def dial_all(stack: ExitStack) -> list[socket.socket]:
        targets = [(origin, *target) for origin in ORIGINS for target in ((OURS, 443), (NODE, 30002))]
        return [stack.enter_context(world.dial(*target)) for target in targets]

    world.kube_proxy(mode)
    with ExitStack() as stack:
        through_theirs = dial_all(stack)
        assert {ask(one).name for one in through_theirs} == {"old"}
        world.program()
        assert {ask(one).name for one in through_theirs} == {"old"}
        through_ours = dial_all(stack)
        assert {ask(one).name for one in through_ours} == {"new"}
        assert world.end()
        assert "kproxy" not in world.tables()
        assert {ask(one).name for one in dial_all(stack)} == {"old"}
        assert {ask(one).name for one in through_ours} == {"new"}
        assert {ask(one).name for one in through_theirs} == {"old"}


@pytest.mark.parametrize("mode", MODES)
def test_from_the_canary_to_all(world: World, mode: str) -> None:
    """The whole takeover on a node with a canary: its tables go once all Services are ours, connections stay."""
    world.kube_proxy(mode)
    world.program()
    with world.dial("outside", OURS) as opened:
        assert ask(opened).name == "new"
        assert world.nftables(objects(NEW, NEW), None)
        assert "kproxy-canary" not in world.tables()
        assert world.module("residue")["changed"]
        assert ask(opened).name == "new"
        assert world.ask("outside", THEIRS).name == "new"
        with pytest.raises(nftables.TakenWhole):
            world.program()


def test_conntrack_cleanup_is_for_the_chosen_alone(world: World) -> None:
    """A UDP flow of a Service that is not ours stays, though none of the endpoints that we know serves it."""
    slices = [item for item in objects(NEW, "") if item["kind"] != "ServiceCIDR"]
    for item in slices:
        for port in item.get("spec", item)["ports"]:
            port["protocol"] = "UDP"
    for address, port in ((OURS, "5001"), (THEIRS, "5002")):
        world.node.run(
            ["conntrack", "-I", "-p", "udp", "-t", "60", "-u", "SEEN_REPLY",
             "-s", POD, "-d", address, "--sport", port, "--dport", "443",
             "-r", OLD, "-q", POD, "--reply-port-src", str(PORT), "--reply-port-dst", port]
        )  # fmt: skip
    world.nftables(slices, CANARY)
    left = world.node.run(["conntrack", "-L", "-p", "udp"])
    assert THEIRS in left
    assert OURS not in left
