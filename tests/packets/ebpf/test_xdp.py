"""XDP with real packets: what comes in by a device and leaves by one never meets the stack; the rest falls to tc."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Protocol

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import program_on
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import Device
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change
from tests.packets.ebpf.fabric import INGRESS, POD, WAIT, Fabric, pass_program
from tests.packets.ebpf.one_node import objects, slices

XDP = 37


class Make(Protocol):
    def __call__(self, xdp: str = "disabled", devices: tuple[str, ...] = ("*",)) -> Fabric: ...


@pytest.fixture
def fabrics() -> Iterator[Make]:
    with contextlib.ExitStack() as stack:

        def make(xdp: str = "disabled", devices: tuple[str, ...] = ("*",)) -> Fabric:
            made = Fabric(xdp, devices=devices)
            stack.callback(made.close)
            return made

        yield make


def everything(node: str = "n2") -> list[Change]:
    return [*objects(), *slices(POD, node)]


def speak(fabric: Fabric, family: int, payload: int = 3) -> str:
    """One TCP connection and one UDP exchange, both ways; whom the endpoint sees."""
    words = [os.urandom(payload), os.urandom(payload)]
    with fabric.serve(family, socket.SOCK_STREAM) as server, fabric.dial(family, socket.SOCK_STREAM) as client:
        accepted, peer = server.accept()
        with accepted:
            accepted.settimeout(WAIT)
            for word in words:
                client.sendall(word)
                assert accepted.recv(payload, socket.MSG_WAITALL) == word
                accepted.sendall(word)
                assert client.recv(payload, socket.MSG_WAITALL) == word
    with fabric.serve(family, socket.SOCK_DGRAM) as server, fabric.dial(family, socket.SOCK_DGRAM) as client:
        for word in words:
            client.send(word)
            received, from_whom = server.recvfrom(payload)
            assert (received, from_whom[0]) == (word, peer[0])
            server.sendto(word, from_whom)
            assert client.recv(payload) == word
    return str(peer[0])


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_north_south_never_meets_the_stack(fabrics: Make, mode: str) -> None:
    fabric = fabrics(mode)
    fabric.sync(*everything())
    for way in ("sent back by the same device", "redirected to another"):
        if way.startswith("redirected"):
            fabric.straight()
        for family in (4, 6):
            before = fabric.first.carried()
            assert speak(fabric, family) == INGRESS[family]
            after = fabric.first.carried()
            assert after["by-xdp"] - before["by-xdp"] > 12, (way, family)
            assert after["by-tc"] == before["by-tc"], (way, family)


@pytest.mark.parametrize("mode", ["native", "generic"])
def test_what_xdp_does_not_carry_falls_to_tc(fabrics: Make, mode: str) -> None:
    """Fragments in both directions; then a way out by a device that has no program."""
    fabric = fabrics(mode, ("eth0",))
    fabric.sync(*everything())
    for family in (4, 6):
        with fabric.serve(family, socket.SOCK_DGRAM) as server, fabric.dial(family, socket.SOCK_DGRAM) as client:
            for word in (b"whole", os.urandom(4000)):
                client.send(word)
                received, from_whom = server.recvfrom(8192)
                assert (received, from_whom[0]) == (word, INGRESS[family])
                server.sendto(word, from_whom)
                assert client.recv(8192) == word
    before = fabric.first.carried()
    assert before["by-xdp"] == 4
    fabric.straight()
    for family in (4, 6):
        assert speak(fabric, family) == INGRESS[family]
    after = fabric.first.carried()
    assert after["by-xdp"] == before["by-xdp"]
    assert after["by-tc"] > before["by-tc"] + 12


def test_a_connection_outlives_the_mode(fabrics: Make) -> None:
    """XDP and tc work on the same entries: taking the program away costs no connection, putting it back neither."""
    fabric = fabrics("generic")
    fabric.sync(*everything())
    with fabric.serve(4, socket.SOCK_STREAM) as server, fabric.dial(4, socket.SOCK_STREAM) as client:
        accepted, _peer = server.accept()
        for mode in ("disabled", "generic", "disabled"):
            options = fabric.first.options
            fabric.first.options = options._replace(xdp=options.xdp._replace(mode=mode))
            fabric.first.backend.close()
            fabric.first.start()
            fabric.first.sync(everything())
            assert set(fabric.first.backend.plane.xdp.pinned().values()) == ({mode} - {"disabled"})
            before = fabric.first.carried()["by-xdp"]
            client.send(b"ping")
            assert accepted.recv(16) == b"ping"
            assert (fabric.first.carried()["by-xdp"] > before) is (mode != "disabled")
        accepted.close()


def test_a_restart_under_traffic_loses_nothing(fabrics: Make) -> None:
    fabric = fabrics("native")
    fabric.sync(*everything())
    done = threading.Event()
    lost: list[int] = []
    sent: list[int] = []
    with fabric.serve(4, socket.SOCK_DGRAM) as server, fabric.dial(4, socket.SOCK_DGRAM) as client:

        def traffic() -> None:
            while not done.is_set() or len(sent) < 100:
                number = len(sent)
                client.send(b"%d" % number)
                sent.append(number)
                try:
                    server.recv(16)
                except TimeoutError:
                    lost.append(number)

        sender = threading.Thread(target=traffic)
        sender.start()
        try:
            for _restart in range(3):
                fabric.first.backend.close()
                fabric.first.start()
                plane = fabric.first.backend.plane
                # As after an upgrade: every hook gets programs that were loaded anew.
                with fabric.ingress.entered():
                    plane.adopt()
                    held = program_on(socket.if_nametoindex("eth0"))
                    plane.attach_devices(swap=True)
                    assert program_on(socket.if_nametoindex("eth0")) != held
        finally:
            done.set()
            sender.join()
    assert lost == []
    assert fabric.first.carried() == {"by-xdp": len(sent), "by-tc": 0}


def test_a_foreign_program_is_named_and_left_alone(fabrics: Make) -> None:
    fabric = fabrics("generic")
    foreign = pass_program("their_filter")
    number = bpf.program_info(foreign).number
    with fabric.ingress.entered():
        index = socket.if_nametoindex("eth0")
        theirs = bpf.link_create(foreign, index, XDP, 1 << 1)
    os.close(foreign)
    fabric.sync(*everything())
    (problem,) = fabric.first.backend.problems
    assert problem.startswith(f"the XDP hook of eth0 is held by another program, their_filter (id {number})")
    with fabric.ingress.entered():
        assert program_on(index) == number
        plane = fabric.first.backend.plane
        assert plane.xdp.in_place(plane.maps, {"eth0": Device(index, 1)}) is False  # up0 has one that is not wanted
    assert speak(fabric, 4) == INGRESS[4]
    # Once it is gone, upkeep takes the hook.
    os.close(theirs)
    with fabric.ingress.entered():
        fabric.first.backend.upkeep()
    assert fabric.first.backend.problems == []
    assert speak(fabric, 4) == INGRESS[4]
    assert fabric.first.carried()["by-xdp"] > 12


def test_devices_that_vanish_and_come_back(fabrics: Make) -> None:
    fabric = fabrics("generic")
    fabric.sync(*everything())
    hooks = fabric.first.backend.plane.xdp
    before = hooks.pinned()
    assert len(before) == 2
    fabric.ingress.ip(["link del dev up0", "link add late0 type veth peer name late1"])
    with fabric.ingress.entered():
        fabric.first.backend.upkeep()
        names = {name: index for index, name in socket.if_nameindex()}
    assert set(hooks.pinned()) == {names["eth0"], names["late0"], names["late1"]}
    held = fabric.first.backend.plane.read(("xdp_links",))["xdp_links"]
    assert {int.from_bytes(key, "little") for key in held} == set(hooks.pinned())
    assert hooks.problems == {}


def test_automatic_choice_takes_hardware_only(fabrics: Make) -> None:
    fabric = fabrics("auto", ())
    fabric.sync(*everything())
    assert fabric.first.backend.plane.xdp.pinned() == {}
    assert speak(fabric, 4) == INGRESS[4]
    assert fabric.first.backend.problems == []


def test_a_program_swapped_under_our_link_is_left_alone(fabrics: Make) -> None:
    fabric = fabrics("generic", ("eth0",))
    fabric.sync(*everything())
    foreign = pass_program("their_filter")
    number = bpf.program_info(foreign).number
    plane = fabric.first.backend.plane
    with fabric.ingress.entered():
        index = socket.if_nametoindex("eth0")
        link = bpf.get_pinned(os.path.join(plane.directory, "links", f"xdp_generic_{index}"))
        bpf.link_update(link, foreign)
        os.close(link)
        plane.attach_devices(swap=True)
        assert program_on(index) == number
    os.close(foreign)
    (problem,) = fabric.first.backend.problems
    assert "holds program their_filter, not kp_xdp: packets that come in by eth0 are served by tc" in problem
    assert speak(fabric, 4) == INGRESS[4]
