"""Direct server return with real packets: the endpoint sees the client, the answer never meets the ingress node."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from typing import Protocol

import pytest

from devtools.waiting import eventually
from tests.packets.ebpf.fabric import BACKEND, CLIENT, INGRESS, WAIT, Fabric
from tests.packets.ebpf.test_xdp import everything

BIG = 1 << 20
# linux/in.h, linux/in6.h
IP_MTU_DISCOVER, IP_MTU, IPV6_MTU_DISCOVER, IPV6_MTU, MTU_DISCOVER_DO = 10, 14, 23, 24, 2
MODES = pytest.mark.parametrize("forwarding", ["dsr-ipip", "dsr-option"])
WAYS = pytest.mark.parametrize("xdp", ["disabled", "generic", "native"])


class Make(Protocol):
    def __call__(self, forwarding: str, xdp: str = "disabled", mtu: int = 1500) -> Fabric: ...


@pytest.fixture
def fabrics() -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def make(forwarding: str, xdp: str = "disabled", mtu: int = 1500) -> Fabric:
            made = Fabric(xdp, forwarding, ("eth0",), mtu)
            stack.callback(made.close)
            return made

        yield make


@WAYS
@MODES
def test_the_client_keeps_its_address_and_is_answered_directly(fabrics: Make, forwarding: str, xdp: str) -> None:
    """Much in both directions at an MTU that has no room to spare; then datagrams of several sizes."""
    fabric = fabrics(forwarding, xdp)
    fabric.sync(*everything())
    for family in (4, 6):
        with fabric.serve(family, socket.SOCK_STREAM) as server, fabric.dial(family, socket.SOCK_STREAM) as client:
            accepted, peer = server.accept()
            assert peer[0] == CLIENT[family]
            accepted.settimeout(WAIT)
            for sender, receiver in ((client, accepted), (accepted, client)):
                word = os.urandom(BIG)
                before = fabric.sent_by_ingress()
                fabric.exchange(sender, receiver, word)
                carried = fabric.sent_by_ingress() - before
                # Only acknowledgements go by the ingress node when the endpoint sends.
                assert (carried > BIG) is (sender is client), (family, carried)
                if sender is accepted:
                    assert carried < BIG // 5, family
            accepted.close()
        with fabric.serve(family, socket.SOCK_DGRAM) as server, fabric.dial(family, socket.SOCK_DGRAM) as client:
            for word in (b"small", os.urandom(1200), b"small again"):
                client.send(word)
                received, from_whom = server.recvfrom(2048)
                assert (received, from_whom[0]) == (word, CLIENT[family])
                server.sendto(word * 2, from_whom)
                assert client.recv(4096) == word * 2
    assert fabric.first.backend.plane.reasons() == dict.fromkeys(fabric.first.backend.plane.reasons(), 0)
    assert (fabric.first.carried()["by-xdp"] > 20) is (xdp != "disabled")


def test_a_datagram_too_long_for_the_tunnel_is_refused_as_routers_do(fabrics: Make) -> None:
    fabric = fabrics("dsr-ipip")
    fabric.sync(*everything())
    for family, level, discover, mtu, header in (
        (4, socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_MTU, 20), (6, socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_MTU, 40),
    ):  # fmt: skip
        with fabric.serve(family, socket.SOCK_DGRAM) as server, fabric.dial(family, socket.SOCK_DGRAM) as client:
            client.setsockopt(level, discover, MTU_DISCOVER_DO)
            client.send(b"short")
            assert server.recv(16) == b"short"
            client.send(bytes(1500 - header - 8))
            with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
                client.recv(16)
            assert client.getsockopt(level, mtu) == 1500 - header
            longest = bytes(1500 - 2 * header - 8)
            client.send(longest)
            assert server.recv(2048) == longest
    assert fabric.first.backend.plane.reasons()["dsr-too-long"] == 2


@MODES
def test_what_direct_return_does_not_carry_is_masqueraded_and_counted(fabrics: Make, forwarding: str) -> None:
    """A first datagram in fragments, and one without room."""
    fabric = fabrics(forwarding)
    fabric.sync(*everything())
    for family in (4, 6):
        for size in (4000, 1500 - 28 - (20 if family == 6 else 0)):
            with fabric.serve(family, socket.SOCK_DGRAM) as server, fabric.dial(family, socket.SOCK_DGRAM) as client:
                for word in (bytes(size), b"and what follows"):
                    client.send(word)
                    received, from_whom = server.recvfrom(8192)
                    assert (received, from_whom[0]) == (word, INGRESS[family])
                    server.sendto(word, from_whom)
                    assert client.recv(8192) == word
    assert fabric.first.backend.plane.reasons()["dsr-masqueraded"] == 4


@MODES
def test_the_endpoints_error_reaches_the_client(fabrics: Make, forwarding: str) -> None:
    fabric = fabrics(forwarding)
    fabric.sync(*everything())
    for family in (4, 6):
        with fabric.dial(family, socket.SOCK_DGRAM) as client:
            client.send(b"nobody listens")
            with pytest.raises(ConnectionRefusedError):
                client.recv(16)


def test_later_datagrams_need_no_room_for_the_option(fabrics: Make) -> None:
    fabric = fabrics("dsr-option", "generic")
    fabric.sync(*everything())
    for family in (4, 6):
        with fabric.serve(family, socket.SOCK_DGRAM) as server, fabric.dial(family, socket.SOCK_DGRAM) as client:
            for word in (b"short", bytes(1500 - 28 - (20 if family == 6 else 0)), bytes(4000)):
                client.send(word)
                received, from_whom = server.recvfrom(8192)
                assert (received, from_whom[0]) == (word, CLIENT[family])


@MODES
def test_an_endpoint_that_the_other_node_does_not_know_is_silent_and_counted(fabrics: Make, forwarding: str) -> None:
    """The ingress node is ahead: the endpoint's node has no such endpoint yet."""
    fabric = fabrics(forwarding)
    fabric.first.sync(everything())
    fabric.second.sync(everything("n1"))
    for number, family in enumerate((4, 6), 1):
        with fabric.serve(family, socket.SOCK_DGRAM), fabric.dial(family, socket.SOCK_DGRAM) as client:
            client.send(b"too early")
            eventually(lambda: fabric.second.backend.plane.reasons()["dsr-unknown"] >= number, "it to be counted")  # noqa: B023
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(16)
    assert fabric.second.backend.plane.reasons()["dsr-unknown"] == 2


def test_endpoints_of_the_node_itself_keep_the_client_too(fabrics: Make) -> None:
    """What is dialled on the endpoint's own node needs no tunnel, and the client's address stays all the same."""
    fabric = fabrics("dsr-ipip")
    fabric.sync(*everything())
    for family in (4, 6):
        server = fabric.serve(family, socket.SOCK_STREAM)
        with fabric.dial(family, socket.SOCK_STREAM, node=BACKEND):
            assert server.accept()[1][0] == CLIENT[family]
