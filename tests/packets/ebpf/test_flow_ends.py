"""How long a connection's entries stay: all of them, or none. Time passes here by making the entries older."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flow_lifetime
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_flows
from devtools.waiting import eventually
from tests.packets.ebpf import one_node
from tests.packets.ebpf.one_node import CLIENT, NODE, POD, WAIT, objects, slices

PORT = 41000
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
HOUR = 3600


class World(one_node.World):
    """passed_at: when time was last made to pass, in ns of the monotonic clock."""

    passed_at = 0


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        made.sync(*objects(), *slices())
        yield made
    finally:
        made.close()


def entries(world: World) -> int:
    return sum(map(len, world.backend.plane.read(("flows4", "flows6")).values()))


def pass_time(world: World, seconds: int) -> None:
    """Make all entries so much older, then collect as kproxyd does every five seconds.

    No other time passes: what the test itself takes, on a machine that is busy or suspended, does not count.
    """
    now = time.monotonic_ns()
    since, world.passed_at = now - world.passed_at, now
    for family in (4, 6):
        opened = world.backend.plane.maps[f"flows{family}"]
        for key, value in opened.dump().items():
            (seen,) = struct.unpack_from("=q", value)
            opened.put(key, struct.pack("=q", min(seen + since, now) - seconds * 10**9) + value[8:])
    with patch.object(ebpf_flows, "time", SimpleNamespace(monotonic_ns=lambda: now)):
        world.backend.collect()


def dial(world: World, family: int, port: int = PORT) -> socket.socket:
    """Dial the NodePort from a port of our choice."""
    client = world.client_socket(world.client, family, socket.SOCK_STREAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind((CLIENT[family], port))
    try:
        client.connect((NODE[family], 30080))
    except OSError:
        client.close()
        raise
    return client


@pytest.mark.parametrize("who", ["client", "endpoint"])
@pytest.mark.parametrize("family", [4, 6])
def test_a_reset_ends_both_directions(world: World, family: int, who: str) -> None:
    """Clients that check health often close so. A port of ours that stays taken is missing later."""
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    client = dial(world, family)
    accepted, _peer = server.accept()
    accepted.settimeout(WAIT)
    first, second = (client, accepted) if who == "client" else (accepted, client)
    first.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    first.close()
    with pytest.raises(ConnectionResetError):
        second.recv(1)
    second.close()
    assert entries(world) == 4
    pass_time(world, 9)
    assert entries(world) == 4
    pass_time(world, 2)
    assert entries(world) == 0


@pytest.mark.parametrize("family", [4, 6])
def test_a_refused_client_may_come_again_from_its_port(world: World, family: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        dial(world, family)
    pass_time(world, 11)
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    with dial(world, family):
        server.accept()[0].close()


@pytest.mark.parametrize("who", ["client", "endpoint"])
@pytest.mark.parametrize("family", [4, 6])
def test_a_half_closed_connection_may_be_idle(world: World, family: int, who: str) -> None:
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    with dial(world, family) as client:
        accepted, _peer = server.accept()
        closer, speaker = (client, accepted) if who == "client" else (accepted, client)
        with accepted:
            for one in (closer, speaker):
                one.settimeout(WAIT)
            closer.shutdown(socket.SHUT_WR)
            assert speaker.recv(1) == b""
            pass_time(world, HOUR - 60)
            for word in (b"first", b"second"):
                speaker.sendall(word)
                assert closer.recv(16) == word

    def gone() -> bool:
        pass_time(world, 11)
        return entries(world) == 0

    eventually(gone, "both directions to go")


@pytest.mark.parametrize("family", [4, 6])
def test_half_a_connection_is_left_for_an_hour(world: World, family: int) -> None:
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    with dial(world, family) as client, server.accept()[0] as accepted:
        accepted.settimeout(WAIT)
        client.shutdown(socket.SHUT_WR)
        assert accepted.recv(1) == b""

        def gone() -> bool:
            pass_time(world, HOUR + 1)
            return entries(world) == 0

        # The endpoint's kernel may take its time to acknowledge.
        eventually(gone, "half a connection to go")


@pytest.mark.parametrize("family", [4, 6])
def test_datagrams_of_one_direction_keep_the_other(world: World, family: int) -> None:
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_DGRAM)
    with world.client_socket(world.client, family, socket.SOCK_DGRAM) as client:
        client.connect((NODE[family], 30080))
        for _ in range(4):
            client.send(b"note")
            _word, peer = server.recvfrom(16)
            pass_time(world, 100)
        server.sendto(b"answer", peer)
        assert client.recv(16) == b"answer"
    pass_time(world, 181)
    assert entries(world) == 0


@pytest.mark.parametrize("family", [4, 6])
def test_what_nobody_answers_goes_within_minutes(world: World, family: int) -> None:
    """As netfilter does with a SYN: 120 seconds after the last one."""
    with world.client_socket(world.client, family, socket.SOCK_STREAM) as client:
        # The endpoint gets the packet, and cannot answer.
        world.pod.ip([f"route del {'0.0.0.0/0' if family == 4 else '::/0'} dev eth0"])
        world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect((NODE[family], 30080))
        eventually(lambda: entries(world) == 4, "the connection's entries")
        pass_time(world, 100)
        assert entries(world) == 4
    pass_time(world, 121)
    assert entries(world) == 0


@pytest.mark.parametrize("family", [4, 6])
def test_an_idle_connection_lives_for_a_day(world: World, family: int) -> None:
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    with dial(world, family) as client, server.accept()[0] as accepted:
        accepted.settimeout(WAIT)
        for _ in range(2):
            pass_time(world, 23 * HOUR)
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
        pass_time(world, 25 * HOUR)
        assert entries(world) == 0


@pytest.mark.parametrize("family", [4, 6])
def test_who_comes_again_while_it_is_collected_is_kept(
    world: World, family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read a large table takes a while; meanwhile a client may use its port again."""
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    client = dial(world, family)
    server.accept()[0].close()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    client.close()
    again: list[socket.socket] = []

    def slowly(held: dict[bytes, bytes], now: int) -> list[list[bytes]]:
        found = flow_lifetime.ended(held, now)
        if found:
            again.append(dial(world, family))
        return found

    monkeypatch.setattr(ebpf_flows, "flow_lifetime", SimpleNamespace(ended=slowly))
    pass_time(world, 11)
    (client,) = again
    with client, server.accept()[0] as accepted:
        accepted.settimeout(WAIT)
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"


def test_a_table_that_is_nearly_full_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert world.backend.problems == []
    with contextlib.suppress(ConnectionRefusedError):
        dial(world, 4)
    monkeypatch.setattr(ebpf_flows, "_CROWDED", 3 / 131072)
    world.backend.collect()
    (problem,) = world.backend.problems
    assert problem.startswith("map flows4 holds 4 of 131072 entries: connections from outside that have been idle")
    pass_time(world, 11)
    assert world.backend.problems == []
