"""Socket load balancing with real sockets: the programs on a cgroup of the test's own, in namespaces of its own."""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netns_cookie import own_netns_cookie
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import BpfFs, NodeCgroup

TCP, UDP = 6, 17
POD4, POD6 = "10.244.1.5", "fd00:10:244:1::5"
VIP4, VIP6 = "10.96.0.10", "fd00:10:96::10"
NODE4 = "192.0.2.11"
STREAM, DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
WAIT = 3.0


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


class World:
    """A node and a pod on one wire, the pod serving TCP and UDP port 8080; a data plane on the node's cgroup."""

    def __init__(self) -> None:
        self.node, self.pod = NetworkNamespace(), NetworkNamespace()
        self.node.ip(
            [
                "link set lo up",
                "link add dev p0 up type veth peer name eth0 netns " + self.pod.path,
                f"addr add {NODE4}/32 dev p0",
                "addr add 2001:db8::11/128 dev p0 nodad",
            ]
        )
        self.pod.ip(
            [
                "link set lo up",
                "link set eth0 up",
                f"addr add {POD4}/32 dev eth0",
                f"addr add {POD6}/128 dev eth0 nodad",
                "route add 0.0.0.0/0 dev eth0",
                "route add ::/0 dev eth0",
            ]
        )
        self.node.ip([f"route add {POD4}/32 dev p0", "route add 10.244.1.6/32 dev p0", f"route add {POD6}/128 dev p0"])
        self.cgroup = NodeCgroup(f"kp-ebpf-test-{os.getpid()}")
        self.bpffs = BpfFs()
        self.plane = Dataplane(os.path.join(self.bpffs.path, "kproxy"), self.cgroup.path)
        self.servers = []
        for family, ip in ((socket.AF_INET, POD4), (socket.AF_INET6, POD6)):
            for kind in (STREAM, DGRAM):
                with self.pod.entered():
                    server = socket.socket(family, kind)
                server.bind((ip, 8080))
                if kind == STREAM:
                    server.listen(16)
                self.servers.append(server)

    def close(self) -> None:
        self.plane.remove()
        for server in self.servers:
            server.close()
        self.bpffs.close()
        self.cgroup.close()
        self.node.close()
        self.pod.close()

    def client(self, family: int, kind: int, where: NetworkNamespace | None = None) -> socket.socket:
        made = self.cgroup.socket((where or self.node).descriptor, family, kind)
        made.settimeout(WAIT)
        return made

    def server(self, family: int, kind: int) -> socket.socket:
        return next(server for server in self.servers if server.family == family and server.type == kind)

    def settings(self, flags: int = 0) -> layout.Settings:
        with self.node.entered():
            cookie = own_netns_cookie()
        return layout.Settings(cookie, flags, 10, packed(NODE4), packed("2001:db8::11"))


def frontend_plan(answers: tuple[int, int, int] = (0, 0, 0), flags: int = 0, seconds: int = 0) -> MapPlan:
    """One service port: VIP:80 and NodePort 30080, one endpoint, both families and protocols."""
    plan = MapPlan()
    for family, vip, pod, node in ((4, VIP4, POD4, NODE4), (6, VIP6, POD6, "2001:db8::11")):
        held = layout.endpoint(packed(pod), 8080, layout.ENDPOINT_LOCAL)
        plan.put(f"slots{family}", layout.slot_key(layout.set_number(1, False), 0), held)
        plan.put(f"members{family}", layout.member_key(layout.set_number(1, False), held), b"\1\0\0\0")
        plan.put(f"cluster_ips{family}", packed(vip), b"\1\0\0\0")
        plan.put(f"node_addrs{family}", packed(node), b"\1\0\0\0")
        for protocol in (TCP, UDP):
            value = layout.FrontendValue(1, 1, 0, seconds, answers, flags).pack()
            plan.put(f"frontends{family}", layout.frontend_key(family, packed(vip), protocol, 80), value)
            plan.put(f"frontends{family}", layout.frontend_key(family, b"", protocol, 30080), value)
    return plan


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        made.plane.open({})
        made.plane.set_settings(made.settings())
        made.plane.write(frontend_plan())
        made.plane.attach()
        yield made
    finally:
        made.close()


CALLS = [
    # family of the socket, kind, dialled
    pytest.param(socket.AF_INET, STREAM, VIP4, 80, id="tcp4"),
    pytest.param(socket.AF_INET, DGRAM, VIP4, 80, id="udp4"),
    pytest.param(socket.AF_INET6, STREAM, VIP6, 80, id="tcp6"),
    pytest.param(socket.AF_INET6, DGRAM, VIP6, 80, id="udp6"),
    pytest.param(socket.AF_INET6, STREAM, "::ffff:" + VIP4, 80, id="mapped-tcp"),
    pytest.param(socket.AF_INET6, DGRAM, "::ffff:" + VIP4, 80, id="mapped-udp"),
    pytest.param(socket.AF_INET, STREAM, NODE4, 30080, id="node-port-tcp4"),
    pytest.param(socket.AF_INET6, STREAM, "2001:db8::11", 30080, id="node-port-tcp6"),
]


def real_family(family: int, dialled: str) -> int:
    return socket.AF_INET if dialled.startswith("::ffff:") else family


@pytest.mark.parametrize(("family", "kind", "dialled", "port"), CALLS)
def test_connected_socket_reaches_the_endpoint_and_sees_the_frontend(
    world: World, family: int, kind: int, dialled: str, port: int
) -> None:
    server = world.server(real_family(family, dialled), kind)
    with world.client(family, kind) as client:
        client.connect((dialled, port))
        assert client.getpeername()[:2] == (dialled, port)
        client.send(b"question")
        if kind == STREAM:
            connection, _peer = server.accept()
            with connection:
                assert connection.recv(64) == b"question"
        else:
            assert select.select([server], [], [], WAIT)[0]
            question, peer = server.recvfrom(64)
            assert question == b"question"
            server.sendto(b"answer", peer)
            assert client.recv(64) == b"answer"


@pytest.mark.parametrize(("family", "kind", "dialled", "port"), CALLS)
def test_only_open_sockets_are_remembered(world: World, family: int, kind: int, dialled: str, port: int) -> None:
    def remembered() -> int:
        return sum(map(len, world.plane.read(("sockets4", "sockets6")).values()))

    with world.client(family, kind) as client, client.dup():
        client.connect((dialled, port))
        assert remembered() == 1
        client.close()
        assert remembered() == 1, "another descriptor of the socket is open"
    assert remembered() == 0


@pytest.mark.parametrize(
    ("family", "dialled"),
    [
        pytest.param(socket.AF_INET, VIP4, id="udp4"),
        pytest.param(socket.AF_INET6, VIP6, id="udp6"),
        pytest.param(socket.AF_INET6, "::ffff:" + VIP4, id="mapped"),
    ],
)
def test_unconnected_udp_gets_its_answer_from_the_frontend(world: World, family: int, dialled: str) -> None:
    server = world.server(real_family(family, dialled), DGRAM)
    with world.client(family, DGRAM) as client:
        client.sendto(b"question", (dialled, 80))
        assert select.select([server], [], [], WAIT)[0]
        _question, peer = server.recvfrom(64)
        server.sendto(b"answer", peer)
        answer, source = client.recvfrom(64)
        assert (answer, source[:2]) == (b"answer", (dialled, 80))


REFUSED = [
    pytest.param((1, 1, 1), VIP4, 80, id="no-endpoint"),
    pytest.param((0, 0, 0), VIP4, 81, id="undefined-port"),
]


@pytest.mark.parametrize(("answers", "dialled", "port"), REFUSED)
@pytest.mark.parametrize("kind", [STREAM, DGRAM], ids=["tcp", "udp"])
def test_refused(world: World, answers: tuple[int, int, int], dialled: str, port: int, kind: int) -> None:
    world.plane.write(frontend_plan(answers))
    with world.client(socket.AF_INET, kind) as client:
        assert client.connect_ex((dialled, port)) == errno.ECONNREFUSED
    reason = "no-endpoint" if answers[0] else "undefined-port"
    assert world.plane.reasons()[reason] == 1


LEFT_ALONE = [
    pytest.param((0, 0, 0), layout.FRONTEND_RANGES, 0, 0, True, id="source-ranges"),
    pytest.param((2, 2, 2), 0, 0, 0, True, id="drop"),
    pytest.param((layout.LOCAL_ONLY, 0, 0), 0, 0, 0, True, id="pods-differ-from-outsiders"),
    pytest.param((0, 0, 0), 0, 0, layout.HOST_ONLY, True, id="host-only"),
    pytest.param((0, 0, 0), layout.FRONTEND_AFFINITY, 60, 0, True, id="affinity-of-an-unbound-socket"),
    pytest.param((0, 0, 0), layout.FRONTEND_AFFINITY, 60, 0, False, id="affinity-of-the-node"),
]


@pytest.mark.parametrize(("answers", "flags", "seconds", "node_flags", "alone"), LEFT_ALONE)
def test_pod_socket_is_left_to_the_packet_path(
    world: World, answers: tuple[int, int, int], flags: int, seconds: int, node_flags: int, alone: bool
) -> None:
    world.plane.set_settings(world.settings(node_flags))
    world.plane.write(frontend_plan(answers, flags, seconds))
    with world.client(socket.AF_INET, DGRAM, world.pod if alone else world.node) as client:
        client.connect((VIP4, 80))
        client.send(b"x")
        entries = world.plane.read(("sockets4",))["sockets4"]
    assert bool(entries) is not alone


def test_affinity_keeps_a_client_and_forgets_a_removed_endpoint(world: World) -> None:
    second = layout.endpoint(packed("10.244.1.6"), 8080)
    plan = frontend_plan((0, 0, 0), layout.FRONTEND_AFFINITY, 600)
    first_set = layout.set_number(1, False)
    plan.put("slots4", layout.slot_key(first_set, 1), second)
    plan.put("members4", layout.member_key(first_set, second), b"\1\0\0\0")
    plan.put(
        "frontends4",
        layout.frontend_key(4, packed(VIP4), UDP, 80),
        layout.FrontendValue(1, 2, 0, 600, (0, 0, 0), layout.FRONTEND_AFFINITY).pack(),
    )
    world.plane.write(plan)

    def chosen() -> set[str]:
        found = set()
        for _ in range(20):
            with world.client(socket.AF_INET, DGRAM) as client:
                client.connect((VIP4, 80))
                cookie = int.from_bytes(client.getsockopt(socket.SOL_SOCKET, 57, 8), "little")
                entries = world.plane.read(("sockets4",))["sockets4"]
            for key, value in entries.items():
                entry = layout.unpack_socket(key, value)
                if entry.cookie == cookie:
                    found.add(socket.inet_ntoa(entry.endpoint_ip))
        return found

    before = chosen()
    assert len(before) == 1
    gone, stays = (POD4, "10.244.1.6") if before == {POD4} else ("10.244.1.6", POD4)
    shrink = MapPlan()
    shrink.put("slots4", layout.slot_key(first_set, 0), layout.endpoint(packed(stays), 8080))
    shrink.put(
        "frontends4",
        layout.frontend_key(4, packed(VIP4), UDP, 80),
        layout.FrontendValue(1, 1, 0, 600, (0, 0, 0), layout.FRONTEND_AFFINITY).pack(),
    )
    shrink.remove("slots4", layout.slot_key(first_set, 1))
    shrink.remove("members4", layout.member_key(first_set, layout.endpoint(packed(gone), 8080)))
    world.plane.write(shrink)
    assert chosen() == {stays}


BINDS = [
    pytest.param(socket.AF_INET, "0.0.0.0", 30080, errno.EADDRINUSE, id="wildcard"),
    pytest.param(socket.AF_INET, NODE4, 30080, errno.EADDRINUSE, id="node-address"),
    pytest.param(socket.AF_INET, "127.0.0.1", 30080, 0, id="loopback"),
    pytest.param(socket.AF_INET, "0.0.0.0", 30081, 0, id="other-port"),
    pytest.param(socket.AF_INET6, "::", 30080, errno.EADDRINUSE, id="wildcard6"),
    pytest.param(socket.AF_INET6, "::1", 30080, 0, id="loopback6"),
]


@pytest.mark.parametrize(("family", "ip", "port", "error"), BINDS)
def test_node_ports_are_protected(world: World, family: int, ip: str, port: int, error: int) -> None:
    world.plane.set_settings(world.settings(layout.PROTECT_NODE_PORTS))
    with world.client(family, STREAM) as server:
        if error:
            with pytest.raises(OSError, match=os.strerror(error)):
                server.bind((ip, port))
        else:
            server.bind((ip, port))


def test_a_restart_adopts_everything(world: World) -> None:
    again = Dataplane(world.plane.root, world.cgroup.path)
    assert again.open({}) is True
    assert set(again.attach().values()) == {"swapped"}
    assert len(again.read(("frontends4",))["frontends4"]) == 4
    again.close()


def test_larger_maps_take_over_what_the_smaller_ones_hold(world: World) -> None:
    needed = world.plane.room()["frontends4"] + 1
    again = Dataplane(world.plane.root, world.cgroup.path)
    again.open({"frontends4": needed})
    again.attach()
    again.retire_old()
    assert again.room()["frontends4"] >= needed
    again.close()
    with world.client(socket.AF_INET, STREAM) as client:
        client.connect((VIP4, 80))


def test_a_socket_outside_the_cgroup_is_untouched(world: World) -> None:
    with world.node.entered():
        client = socket.socket(socket.AF_INET, STREAM)
    with client:
        assert client.connect_ex((VIP4, 80)) == errno.ENETUNREACH
