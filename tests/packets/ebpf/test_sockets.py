"""Socket load balancing with real sockets: the programs on a cgroup of the test's own, in namespaces of its own."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from tests.packets.ebpf.socket_world import (
    DGRAM,
    NODE4,
    POD4,
    STREAM,
    UDP,
    VIP4,
    VIP6,
    WAIT,
    World,
    frontend_plan,
    packed,
    places,
    take_every_place,
)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        made.serve()
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


@pytest.mark.parametrize("crowded", [False, True], ids=["places-free", "places-taken"])
@pytest.mark.parametrize(("family", "kind", "dialled", "port"), CALLS)
def test_only_open_sockets_are_remembered(
    world: World, crowded: bool, family: int, kind: int, dialled: str, port: int
) -> None:
    if crowded:
        take_every_place(world)

    def remembered() -> tuple[int, int, int]:
        taken, elsewhere = places(world)
        return sum(map(len, world.plane.read(("sockets4", "sockets6")).values())), taken, elsewhere

    with world.client(family, kind) as client, client.dup():
        client.connect((dialled, port))
        expected = (1, 0, 0) if kind == DGRAM else (1, 0, 1) if crowded else (0, 1, 0)
        assert remembered() == expected
        client.close()
        assert remembered() == expected, "another descriptor of the socket is open"
    assert remembered() == (0, 0, 0)


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
        layout.FrontendValue(1, 2, 0, 600, (0, 0, 0), layout.FRONTEND_AFFINITY).pack(4),
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
        layout.FrontendValue(1, 1, 0, 600, (0, 0, 0), layout.FRONTEND_AFFINITY).pack(4),
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
