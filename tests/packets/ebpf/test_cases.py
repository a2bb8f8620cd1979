"""The reported cases that are about eBPF: 11 (late NodePort addresses), 23 (connected UDP sockets), 24 (meshes)."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import BpfFs, NodeCgroup

CASES = Path(__file__).resolve().parents[3] / "tests" / "cases"
NODE = "192.0.2.11"
#: Whatever comes, comes at once; who waits so long waits in vain.
WAIT = 60.0


def manifests(case: str, name: str) -> list[Any]:
    documents = yaml.safe_load_all((CASES / case / name).read_text())
    return [Upsert(obj) for document in documents if document and (obj := parse(document)) is not None]


class World:
    """A node with two leaves: one holds every endpoint, one the pods that dial."""

    def __init__(self, endpoints: list[str], pods: list[str], config: dict[str, Any], host_only: bool) -> None:
        self.node, self.far, self.pod = NetworkNamespace(), NetworkNamespace(), NetworkNamespace()
        self.node.sysctl("ipv4.ip_forward", "1")
        lines = ["link set lo up"]
        for device, mac, leaf, ips in (
            ("far0", "02:00:00:00:00:01", self.far, endpoints),
            ("pod0", "02:00:00:00:00:02", self.pod, pods),
        ):
            ends = f"address {mac} arp off"
            lines.append(f"link add dev {device} {ends} up type veth peer name eth0 {ends} netns {leaf.path}")
            lines += [f"route add {ip}/32 dev {device}" for ip in ips]
        self.node.ip([*lines, f"addr add {NODE}/32 dev far0"])
        for leaf, ips in ((self.far, endpoints), (self.pod, pods)):
            leaf.ip(
                [
                    "link set lo up",
                    "link set eth0 up",
                    *(f"addr add {ip}/32 dev eth0" for ip in ips),
                    "route add 0.0.0.0/0 dev eth0",
                ]
            )
        self.bpffs = BpfFs()
        self.cgroup = NodeCgroup(f"kp-ebpf-case-{os.getpid()}")
        self.config = ProxyConfig.from_mapping({"nodeName": "n1", "clusterCIDR": "10.244.0.0/16", **config})
        self.sockets: list[socket.socket] = []
        self.start(host_only)

    def start(self, host_only: bool) -> None:
        """Begin as a new process does: with nothing but what the kernel holds."""
        options = Options(os.path.join(self.bpffs.path, "kproxy"), self.cgroup.path, host_only)
        with self.node.entered():
            self.backend = EbpfBackend(options=options)
        self.engine = Engine(self.config, self.backend)

    def sync(self, changes: list[Any]) -> None:
        with self.node.entered():
            self.engine.apply(changes)
            self.engine.sync()

    def upkeep(self) -> None:
        with self.node.entered():
            self.backend.upkeep()

    def client(self, where: NetworkNamespace, kind: int, source: str = "") -> socket.socket:
        made = self.cgroup.socket(where.descriptor, socket.AF_INET, kind)
        made.settimeout(WAIT)
        if source:
            made.bind((source, 0))
        self.sockets.append(made)
        return made

    def serve(self, ip: str, port: int, kind: int) -> socket.socket:
        with self.far.entered():
            server = socket.socket(socket.AF_INET, kind)
        server.settimeout(WAIT)
        server.bind((ip, port))
        if kind == socket.SOCK_STREAM:
            server.listen(16)
        self.sockets.append(server)
        return server

    def close(self) -> None:
        with self.node.entered():
            self.backend.remove()
            self.backend.close()
        for held in self.sockets:
            held.close()
        self.bpffs.close()
        self.cgroup.close()
        for namespace in (self.node, self.far, self.pod):
            namespace.close()


Make = Callable[..., World]


@pytest.fixture
def worlds() -> Iterator[Make]:
    made: list[World] = []

    def make(endpoints: list[str], pods: list[str], host_only: bool = False, **config: Any) -> World:
        made.append(World(endpoints, pods, config, host_only))
        return made[-1]

    yield make
    for world in made:
        world.close()


def chosen(client: socket.socket, servers: dict[str, socket.socket]) -> str:
    """Return which UDP server a client's next datagram reaches."""
    client.send(b"x")
    ready, _, _ = select.select(list(servers.values()), [], [], WAIT)
    assert ready, "no server got it"
    ready[0].recv(16)
    return next(ip for ip, server in servers.items() if server is ready[0])


def test_case_23_connected_udp_sockets_are_closed(worlds: Make) -> None:
    case, vip = "23-ebpf-connected-udp-socket", ("10.96.0.10", 53)
    gone, stays, new = "10.244.3.9", "10.244.2.9", "10.244.3.10"
    world = worlds([gone, stays, new], ["10.244.1.41", "10.244.1.42", "10.244.1.44"])
    servers = {ip: world.serve(ip, 53, socket.SOCK_DGRAM) for ip in (gone, stays, new)}
    for ip in (gone, stays):
        world.serve(ip, 53, socket.SOCK_STREAM)
    world.sync(manifests(case, "objects-before.yaml"))

    def dialled(where: NetworkNamespace, source: str, endpoint: str) -> socket.socket:
        """Connect to the Service until the wanted endpoint is the one chosen."""
        for _ in range(200):
            client: socket.socket = world.client(where, socket.SOCK_DGRAM, source)
            client.connect(vip)
            if chosen(client, servers) == endpoint:
                return client
        raise AssertionError("never chosen")

    closed = [dialled(world.node, "", gone), dialled(world.pod, "10.244.1.41", gone)]
    kept = [dialled(world.pod, "10.244.1.41", stays)]
    direct = [world.client(world.pod, socket.SOCK_DGRAM, "10.244.1.42"), dialled(world.pod, "10.244.1.41", gone)]
    for client in direct:
        client.connect((gone, 53))
    stream = world.client(world.pod, socket.SOCK_STREAM, "10.244.1.42")
    stream.connect(vip)
    unconnected = world.client(world.pod, socket.SOCK_DGRAM, "10.244.1.44")

    world.sync(manifests(case, "objects-after.yaml"))
    for client in closed:
        with pytest.raises(OSError, match=f"{os.strerror(errno.ECONNABORTED)}|{os.strerror(errno.EDESTADDRREQ)}"):
            client.send(b"x") and client.recv(1)
    assert chosen(kept[0], servers) == stays
    for client in direct:
        assert chosen(client, servers) == gone
    assert stream.getpeername() == vip
    seen = set()
    for _ in range(40):
        unconnected.sendto(b"q", vip)
        ready, _, _ = select.select(list(servers.values()), [], [], WAIT)
        _question, peer = ready[0].recvfrom(16)
        ready[0].sendto(b"a", peer)
        assert unconnected.recvfrom(16)[1] == vip
        seen.add(next(ip for ip, server in servers.items() if server is ready[0]))
    assert seen == {stays, new}


CASE_23 = "23-ebpf-connected-udp-socket"
GONE, STAYS = "10.244.3.9", "10.244.2.9"


def draining(case: str, name: str, address: str) -> list[Any]:
    """Return the case's objects with one endpoint terminating, and serving still."""
    documents = [one for one in yaml.safe_load_all((CASES / case / name).read_text()) if one]
    for document in documents:
        for endpoint in document.get("endpoints", ()):
            if endpoint["addresses"] == [address]:
                endpoint["conditions"] = {"ready": False, "serving": True, "terminating": True}
    return [Upsert(obj) for document in documents if (obj := parse(document)) is not None]


def drained_first(world: World, client: socket.socket, servers: dict[str, socket.socket]) -> None:
    """It is drained, keeps its sockets, and leaves later."""
    world.sync(draining(CASE_23, "objects-before.yaml", GONE))
    assert chosen(client, servers) == GONE
    world.sync(manifests(CASE_23, "objects-after.yaml"))


def left_unseen(world: World, client: socket.socket, servers: dict[str, socket.socket]) -> None:
    """It leaves while no daemon runs; the next one finds out when it starts."""
    for objects in ("objects-before.yaml", "objects-after.yaml"):
        assert chosen(client, servers) == GONE
        with world.node.entered(), contextlib.closing(EbpfBackend(options=world.backend.options)) as backend:
            again = Engine(world.engine.config, backend)
            again.apply(manifests(CASE_23, objects))
            again.sync()


@pytest.mark.parametrize("leaves", [drained_first, left_unseen], ids=["drained-first", "left-unseen"])
@pytest.mark.parametrize("where", ["node", "pod"])
def test_case_23_whatever_way_an_endpoint_leaves(
    worlds: Make, where: str, leaves: Callable[[World, socket.socket, dict[str, socket.socket]], None]
) -> None:
    world = worlds([GONE, STAYS, "10.244.3.10"], ["10.244.1.41"])
    servers = {ip: world.serve(ip, 53, socket.SOCK_DGRAM) for ip in (GONE, STAYS, "10.244.3.10")}
    world.sync(manifests(CASE_23, "objects-before.yaml"))
    clients: dict[str, socket.socket] = {}
    for _ in range(200):
        client = world.client(getattr(world, where), socket.SOCK_DGRAM)
        client.connect(("10.96.0.10", 53))
        clients.setdefault(chosen(client, servers), client)
        if {GONE, STAYS} <= set(clients):
            break
    leaves(world, clients[GONE], servers)
    with pytest.raises(OSError, match=f"{os.strerror(errno.ECONNABORTED)}|{os.strerror(errno.EDESTADDRREQ)}"):
        clients[GONE].send(b"x") and clients[GONE].recv(1)
    assert chosen(clients[STAYS], servers) == STAYS


def connected(world: World) -> int:
    """Return how many TCP sockets were translated when they were connected."""
    return layout.places_taken(world.backend.plane.read(("connected4",))["connected4"].values())


def test_case_24_host_namespace_only(worlds: Make) -> None:
    vip, endpoints = ("10.96.240.1", 80), ["10.244.1.141", "10.244.2.141"]
    world = worlds(endpoints, ["10.244.1.42"], host_only=True)
    servers = {ip: world.serve(ip, 8080, socket.SOCK_STREAM) for ip in endpoints}
    world.sync(manifests("24-socket-lb-with-mesh", "objects.yaml"))
    for where in (world.pod, world.node):
        client = world.client(where, socket.SOCK_STREAM)
        client.connect(vip)
        assert client.getpeername() == vip
        ready, _, _ = select.select(list(servers.values()), [], [], WAIT)
        connection, _peer = ready[0].accept()
        with connection:
            connection.send(b"answer")
            assert client.recv(16) == b"answer"
    # The pod's connection was translated on the wire, the node's at the socket.
    assert len(world.backend.plane.read(("flows4",))["flows4"]) == 2
    assert connected(world) == 1


@pytest.mark.parametrize("first", [False, True])
def test_case_24_switched_on_a_running_node_without_losing_a_flow(worlds: Make, first: bool) -> None:
    vip, endpoints = ("10.96.240.1", 80), ["10.244.1.141", "10.244.2.141"]
    world = worlds(endpoints, ["10.244.1.42"], host_only=first)
    servers = {ip: world.serve(ip, 8080, socket.SOCK_STREAM) for ip in endpoints}
    objects = manifests("24-socket-lb-with-mesh", "objects.yaml")
    world.sync(objects)

    def dialled() -> tuple[socket.socket, socket.socket]:
        client = world.client(world.pod, socket.SOCK_STREAM)
        client.connect(vip)
        ready, _, _ = select.select(list(servers.values()), [], [], WAIT)
        world.sockets.append(ready[0].accept()[0])
        return client, world.sockets[-1]

    def works(client: socket.socket, server: socket.socket) -> bool:
        client.send(b"question")
        received = server.recv(16)
        server.send(b"answer")
        return received == b"question" and client.recv(16) == b"answer" and client.getpeername() == vip

    def translated() -> tuple[bool, bool]:
        """Whether anything was translated on the wire, and at a socket."""
        return bool(world.backend.plane.read(("flows4",))["flows4"]), connected(world) > 0

    before = dialled()
    assert works(*before)
    assert translated() == (first, not first)
    world.backend.close()
    world.start(not first)
    world.sync(objects)
    assert works(*before)
    after = dialled()
    assert works(*after)
    assert translated() == (True, True)
    assert works(*before)


LATE = [
    # nodePortAddresses, addresses that serve at t1
    pytest.param(["0.0.0.0/0"], {NODE, "192.0.2.200", "198.51.100.140"}, id="all"),
    pytest.param(["192.0.2.0/24"], {NODE, "192.0.2.200"}, id="cidr"),
    pytest.param(["primary"], {NODE}, id="primary"),
]


@pytest.mark.parametrize(("ranges", "serving"), LATE)
def test_case_11_node_ports_on_late_addresses(worlds: Make, ranges: list[str], serving: set[str]) -> None:
    world = worlds(["10.244.2.95"], ["10.244.1.9"], nodePortAddresses=ranges, nodeIPs=[NODE])
    server = world.serve("10.244.2.95", 8080, socket.SOCK_STREAM)
    late = ["192.0.2.200", "198.51.100.140"]
    world.sync(manifests("11-nodeport-on-late-vip", "objects.yaml"))

    def answering() -> set[str]:
        found = set()
        for ip in [NODE, *late]:
            client = world.client(world.node, socket.SOCK_STREAM)
            # Refused, or without a route, where it does not serve.
            if client.connect_ex((ip, 31140)) == 0:
                found.add(ip)
                server.accept()[0].close()
        return found

    assert answering() == {NODE}
    world.node.ip([f"addr add {ip}/32 dev far0" for ip in late])
    world.upkeep()
    assert answering() == serving
    world.node.ip([f"addr del {ip}/32 dev far0" for ip in late])
    world.upkeep()
    assert answering() == {NODE}
