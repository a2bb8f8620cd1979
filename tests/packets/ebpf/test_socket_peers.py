"""Which peer a socket sees after a sequence of calls: the one that it dialled last, whatever it was led to before."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from tests.packets.ebpf.socket_world import (
    DGRAM,
    NODE4,
    POD4,
    POD6,
    STREAM,
    TCP,
    VIP4,
    VIP6,
    WAIT,
    World,
    packed,
    places,
    take_every_place,
)


class Step(NamedTuple):
    """One call of a sequence: connect to an address, and how that ends."""

    address: str
    port: int
    error: int = 0


REFUSES = errno.ECONNREFUSED
VIP_A, VIP_B, POD_A = (VIP4, 80), (NODE4, 30080), (POD4, 8080)
#: Its endpoint listens only after LISTEN.
LATE_A, LATE_B, LATE_POD = (VIP4, 82), (NODE4, 30082), (POD4, 8082)
VIP6_A, POD6_A, LATE6_A, LATE6_POD = (VIP6, 80), (POD6, 8080), (VIP6, 82), (POD6, 8082)
LISTEN, DISSOLVE = "listen", "dissolve"
#: asm-generic/socket.h
SO_COOKIE = 57


def mapped(to: tuple[str, int]) -> tuple[str, int]:
    return "::ffff:" + to[0], to[1]


SEQUENCES = [
    # family, kind, the steps; the last one dialled is the peer that the socket must see.
    pytest.param(4, STREAM, [Step(*LATE_A, REFUSES), LISTEN, Step(*LATE_POD)], id="tcp-then-its-endpoint"),
    pytest.param(4, STREAM, [Step(*LATE_A, REFUSES), LISTEN, Step(*LATE_B)], id="tcp-then-another-way-to-it"),
    pytest.param(4, STREAM, [Step(*LATE_A, REFUSES), Step(*VIP_A)], id="tcp-then-another-frontend"),
    pytest.param(4, STREAM, [Step(*LATE_A, REFUSES), Step(*POD_A)], id="tcp-then-another-endpoint"),
    pytest.param(4, STREAM, [Step(*LATE_POD, REFUSES), LISTEN, Step(*LATE_A)], id="tcp-endpoint-then-frontend"),
    pytest.param(
        4, STREAM,
        [Step(*LATE_A, REFUSES), Step(*LATE_POD, REFUSES), Step(*LATE_B, REFUSES), LISTEN, Step(*LATE_POD)],
        id="tcp-to-and-fro",
    ),
    pytest.param(4, STREAM, [Step(*VIP_A), DISSOLVE, Step(*POD_A)], id="tcp-dissolved-then-its-endpoint"),
    pytest.param(4, STREAM, [Step(*VIP_A), DISSOLVE, Step(*VIP_B)], id="tcp-dissolved-then-another-way"),
    pytest.param(4, STREAM, [Step(VIP4, 81, REFUSES), Step(*VIP_A)], id="tcp-undefined-port-first"),
    pytest.param(6, STREAM, [Step(*LATE6_A, REFUSES), LISTEN, Step(*LATE6_POD)], id="tcp6-then-its-endpoint"),
    pytest.param(6, STREAM, [Step(*mapped(LATE_A), REFUSES), LISTEN, Step(*mapped(LATE_POD))], id="mapped-tcp"),
    # The other way round hangs in the kernel, with frontends and without.
    pytest.param(6, STREAM, [Step(*LATE6_A, REFUSES), Step(*mapped(VIP_A))], id="tcp6-then-mapped"),
    pytest.param(
        6, STREAM,
        [Step(*LATE6_A, REFUSES), Step(*mapped(LATE_A), REFUSES), LISTEN, Step(*mapped(LATE_POD))],
        id="tcp6-mapped-its-endpoint",
    ),
    pytest.param(4, DGRAM, [Step(*VIP_A), Step(*POD_A)], id="udp-then-its-endpoint"),
    pytest.param(4, DGRAM, [Step(*POD_A), Step(*VIP_A)], id="udp-endpoint-then-frontend"),
    pytest.param(4, DGRAM, [Step(*VIP_A), Step(*VIP_B)], id="udp-then-another-way"),
    pytest.param(4, DGRAM, [Step(*VIP_A), DISSOLVE, Step(*POD_A)], id="udp-dissolved-then-its-endpoint"),
    pytest.param(4, DGRAM, [Step(*VIP_A), Step(VIP4, 81, REFUSES), Step(*VIP_B)], id="udp-refused-between"),
    pytest.param(6, DGRAM, [Step(*mapped(VIP_A)), DISSOLVE, Step(*VIP6_A)], id="mapped-then-udp6"),
    pytest.param(6, DGRAM, [Step(*VIP6_A), Step(*POD6_A)], id="udp6-then-its-endpoint"),
]  # fmt: skip


def late_plan() -> MapPlan:
    """Ports 82 and 30082, which lead to port 8082 of the pod."""
    plan = MapPlan()
    for family, vip, pod in ((4, VIP4, POD4), (6, VIP6, POD6)):
        held = layout.endpoint(packed(pod), 8082)
        value = layout.FrontendValue(2, 1, 0, 0, (0, 0, 0), 0).pack(family)
        plan.put(f"slots{family}", layout.slot_key(layout.set_number(2, False), 0), held)
        plan.put(f"frontends{family}", layout.frontend_key(family, packed(vip), TCP, 82), value)
        plan.put(f"frontends{family}", layout.frontend_key(family, b"", TCP, 30082), value)
    return plan


def dissolve(client: socket.socket) -> None:
    """Take a socket's peer away, as connect(2) with AF_UNSPEC does."""
    nobody = ctypes.create_string_buffer(bytes(16))
    assert ctypes.CDLL(None, use_errno=True).connect(client.fileno(), nobody, 16) == 0


@pytest.fixture(scope="module", params=[False, True], ids=["places-free", "places-taken"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """One for all sequences: sockets are made anew for each, and nothing else changes."""
    made = World()
    try:
        made.serve()
        made.plane.write(late_plan())
        if request.param:
            take_every_place(made)
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("family", "kind", "steps"), SEQUENCES)
def test_a_socket_sees_the_peer_that_it_dialled_last(
    world: World, family: int, kind: int, steps: list[Step | str]
) -> None:
    late: list[socket.socket] = []
    with world.client(socket.AF_INET if family == 4 else socket.AF_INET6, kind) as client:
        # One whose connect() fails while nobody waits for it has to be asked once more before it may connect again.
        client.settimeout(None)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("=qq", int(WAIT), 0))
        dialled: tuple[str, int] | None = None
        for step in steps:
            if step == LISTEN:
                late.extend(world.listen(8082))
            elif step == DISSOLVE:
                dissolve(client)
            elif isinstance(step, Step):
                assert client.connect_ex((step.address, step.port)) == step.error
                dialled = (step.address, step.port)
        seen = client.getpeername()[:2]
    for server in late:
        server.close()
    assert seen == dialled
    assert kind == DGRAM or places(world)[0] == 0


def test_a_connected_socket_that_also_sends_elsewhere_keeps_its_peer(world: World) -> None:
    with world.client(socket.AF_INET, DGRAM) as client:
        client.connect(VIP_A)
        client.sendto(b"question", POD_A)
        assert client.getpeername() == VIP_A
        server = world.server(socket.AF_INET, DGRAM)
        _question, peer = server.recvfrom(64)
        server.sendto(b"answer", peer)
        assert client.recvfrom(64) == (b"answer", VIP_A)


def test_a_dissolved_socket_sees_who_answers(world: World) -> None:
    server = world.server(socket.AF_INET, DGRAM)
    with world.client(socket.AF_INET, DGRAM) as client:
        client.connect(VIP_A)
        dissolve(client)
        client.sendto(b"question", VIP_B)
        _question, peer = server.recvfrom(64)
        server.sendto(b"answer", peer)
        assert client.recvfrom(64) == (b"answer", VIP_B)


def test_many_sockets_at_once_see_what_each_has_dialled(world: World) -> None:
    clients = [world.client(socket.AF_INET, STREAM) for _ in range(16)]
    try:
        for number, client in enumerate(clients):
            client.connect(VIP_B if number % 2 else VIP_A)
            world.server(socket.AF_INET, STREAM).accept()[0].close()
        for number, client in enumerate(clients):
            assert client.getpeername() == (VIP_B if number % 2 else VIP_A)
    finally:
        for client in clients:
            client.close()
    assert places(world)[0] == 0


def test_a_tcp_socket_that_the_former_layout_knows_keeps_its_peer(world: World) -> None:
    """All sockets were in sockets4/6 then."""
    with world.client(socket.AF_INET, STREAM) as client:
        client.connect(POD_A)
        assert client.getpeername() == POD_A
        cookie = client.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8)
        key = cookie + packed(POD4) + struct.pack("!HH", 8080, 0)
        world.plane.maps["sockets4"].put(key, packed(VIP4) + struct.pack("!HBB", 80, TCP, 0) + struct.pack("=I", 1))
        assert client.getpeername() == VIP_A
