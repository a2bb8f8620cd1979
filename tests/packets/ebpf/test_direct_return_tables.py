"""Direct return by tables of packets: what the dialled node sends on, what the endpoint's node makes of it, who may."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flow_lifetime, layout, object_file, programs
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.programs import xdp
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import load_programs
from tests.packets.ebpf import frames
from tests.packets.ebpf.frames import ACK, FIN, SYN, packed
from tests.packets.ebpf.loaded_programs import Programs
from tests.packets.ebpf.program_node import IN, OUT, PLACES, SERVICE, SHOT, UNSPEC, Build, Node

FRONTEND = "203.0.113.80", "2001:db8:cafe::80"
OTHER = "203.0.113.81", "2001:db8:cafe::81"
PORT = 8080
DSR = {"tunnel": layout.DSR_TUNNEL, "option": layout.DSR_OPTION}
XDP_DROP, XDP_PASS = 1, 2


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Programs, Programs]]:
    """The packet programs of two nodes."""
    made = Programs({}), Programs({})
    try:
        yield made
    finally:
        for one in made:
            one.close()


class Pair:
    """The node that is dialled and the node that has the endpoint."""

    def __init__(self, family: int, way: str, both: tuple[Programs, Programs]) -> None:
        self.place = PLACES[family]
        self.frontend, self.other = (held[family == 6] for held in (FRONTEND, OTHER))
        self.way = way
        self.dialled, self.serving = (Node(self.place, one) for one in both)
        self.dialled.settings(DSR[way])
        for node in (self.dialled, self.serving):
            for ip in (self.frontend, self.other):
                node.frontend(layout.MASQUERADE, ip=ip)
                node.frontend(layout.MASQUERADE, ip=ip, protocol=frames.UDP)
        self.serving.endpoint(layout.ENDPOINT_LOCAL)
        self.member(True)

    def member(self, there: bool) -> None:
        held = layout.endpoint(packed(self.place.pod), PORT, layout.ENDPOINT_LOCAL)
        key = layout.member_key(layout.set_number(SERVICE, False), held)
        if there:
            self.serving.put("members", key, b"\1\0\0\0")
        else:
            self.serving.maps[f"members{self.place.family}"].delete([key])

    def sent_on(self, packet: bytes) -> bytes:
        """Through both hooks of the dialled node."""
        verdict, between = self.dialled.run(IN, packet)
        assert verdict == UNSPEC
        verdict, after = self.dialled.run(OUT, between)
        assert verdict == UNSPEC
        return after

    def wanted(self, original: bytes, direct: bytes) -> bytes:
        """What goes on the wire for the client's packet; direct: the same, to the endpoint itself."""
        place = self.place
        if self.way == "tunnel":
            if place.family == 4:
                outer = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(original), PORT, 0x4000, 64, 4, 0)
                outer += packed(place.node) + packed(place.pod)
                return outer[:10] + struct.pack("!H", frames.checksum(outer)) + outer[12:] + original
            outer = struct.pack("!IHBB", 0x60000000 | PORT, len(original), 41, 64)
            return outer + packed(place.node) + packed(place.pod) + original
        if place.family == 4:
            option = struct.pack("!BBH", 0x9A, 8, 80) + packed(self.frontend)
            header = bytearray(direct[:20] + option)
            header[0] = 0x47
            header[2:4] = struct.pack("!H", len(direct) + 8)
            header[10:12] = b"\0\0"
            header[10:12] = struct.pack("!H", frames.checksum(bytes(header)))
            return bytes(header) + direct[20:]
        option = struct.pack("!BBBB", direct[6], 2, 0x1B, 18) + packed(self.frontend) + struct.pack("!HBB", 80, 1, 0)
        header = bytearray(direct[:40])
        header[4:7] = struct.pack("!HB", len(direct) - 40 + 24, 60)
        return bytes(header) + option + direct[40:]


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def family(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("protocol", [frames.TCP, frames.UDP])
@pytest.mark.parametrize("way", DSR)
def test_a_life(family: int, way: str, protocol: int, both: tuple[Programs, Programs]) -> None:
    pair = Pair(family, way, both)
    place = pair.place
    build: Build = frames.tcp if protocol == frames.TCP else frames.udp
    first = build(place.client, 40000, pair.frontend, 80)
    direct = build(place.client, 40000, place.pod, PORT)
    on_the_wire = pair.sent_on(first)
    assert on_the_wire == pair.wanted(first, direct)
    assert pair.serving.run(IN, on_the_wire) == (UNSPEC, direct)
    answer = build(place.pod, PORT, place.client, 40000)
    assert pair.serving.run(OUT, answer) == (UNSPEC, build(pair.frontend, 80, place.client, 40000))


@pytest.mark.parametrize("way", DSR)
def test_what_follows_a_syn(family: int, way: str, both: tuple[Programs, Programs]) -> None:
    """Through a tunnel every packet says everything; with the option, what follows goes bare."""
    pair = Pair(family, way, both)
    place = pair.place
    pair.serving.run(IN, pair.sent_on(frames.tcp(place.client, 40000, pair.frontend, 80)))
    following = frames.tcp(place.client, 40000, pair.frontend, 80, ACK)
    direct = frames.tcp(place.client, 40000, place.pod, PORT, ACK)
    on_the_wire = pair.sent_on(following)
    assert on_the_wire == (direct if way == "option" else pair.wanted(following, direct))
    assert pair.serving.run(IN, on_the_wire) == (UNSPEC, direct)
    if way == "tunnel":
        # The endpoint's node has lost its entries: the packet itself makes them anew.
        held = pair.serving.maps[f"flows{family}"]
        held.delete(list(held.dump()))
        assert pair.serving.run(IN, on_the_wire) == (UNSPEC, direct)
        answer = frames.tcp(place.pod, PORT, place.client, 40000, ACK)
        assert pair.serving.run(OUT, answer)[1] == frames.tcp(pair.frontend, 80, place.client, 40000, ACK)
        # It began long ago: that no answer to its SYN was seen here tells nothing.
        assert flow_lifetime.ended(held.dump(), time.monotonic_ns() + 3600 * 10**9) == []


@pytest.mark.parametrize("way", DSR)
def test_only_for_endpoints_here(family: int, way: str, both: tuple[Programs, Programs]) -> None:
    pair = Pair(family, way, both)
    on_the_wire = pair.sent_on(frames.tcp(pair.place.client, 40000, pair.frontend, 80))
    pair.member(False)
    assert pair.serving.run(IN, on_the_wire) == (SHOT, on_the_wire)
    assert pair.serving.reason("dsr-unknown") == 1
    # A frontend of nobody's: another's tunnel, which is none of ours.
    for held in (pair.frontend, pair.other):
        key = layout.frontend_key(family, packed(held), frames.TCP, 80)
        pair.serving.maps[f"frontends{family}"].delete([key])
    assert pair.serving.run(IN, on_the_wire) == (UNSPEC, on_the_wire)


@pytest.mark.parametrize("way", DSR)
def test_one_client_port_through_two_frontends(family: int, way: str, both: tuple[Programs, Programs]) -> None:
    """The second is masqueraded while the first one lives, and not any more once it has ended."""
    pair = Pair(family, way, both)
    place = pair.place
    pair.sent_on(frames.tcp(place.client, 40000, pair.frontend, 80))
    second = pair.sent_on(frames.tcp(place.client, 40000, pair.other, 80))
    start = 12 if family == 4 else 8
    assert second[start : start + len(packed(place.node))] == packed(place.node)
    assert pair.dialled.reason("dsr-masqueraded") == 1
    # A direct connection from the same port goes beside them, untouched but for its port.
    direct = pair.sent_on(frames.tcp(place.client, 40000, place.pod, PORT))
    assert len(direct) == len(second)
    assert direct[start : start + len(packed(place.client))] == packed(place.client)
    pair.dialled.programs.empty()
    pair = Pair(family, way, both)
    pair.sent_on(frames.tcp(place.client, 40000, pair.frontend, 80))
    pair.sent_on(frames.tcp(place.client, 40000, pair.frontend, 80, FIN | ACK))
    direct_syn = frames.tcp(place.client, 40000, place.pod, PORT)
    assert pair.sent_on(direct_syn) == direct_syn


@pytest.mark.parametrize("way", DSR)
def test_endpoints_outside_the_pod_ranges_are_masqueraded(
    family: int, way: str, both: tuple[Programs, Programs]
) -> None:
    """A database elsewhere, behind a Service without a selector: nobody there would read what is added."""
    pair = Pair(family, way, both)
    place = pair.place
    ranges = pair.dialled.maps[f"pod_cidrs{family}"]
    ranges.delete(list(ranges.dump()))
    start = 12 if family == 4 else 8
    sent = pair.sent_on(frames.tcp(place.client, 40000, pair.frontend, 80))
    assert sent[start : start + len(packed(place.node))] == packed(place.node)
    assert pair.dialled.reason("dsr-masqueraded") == 1


def test_the_segment_size_leaves_room_for_the_tunnel(family: int, both: tuple[Programs, Programs]) -> None:
    pair = Pair(family, "tunnel", both)
    place = pair.place
    pair.serving.run(IN, pair.sent_on(frames.tcp(place.client, 40000, pair.frontend, 80)))

    def answer(source: str, sport: int, size: int) -> bytes:
        segment = struct.pack("!HHIIBBHHHBBH", sport, 40000, 1, 2, 0x60, SYN | ACK, 1024, 0, 0, 2, 4, size)
        summed = frames.summed(segment, 16, source, place.client, frames.TCP)
        return frames.ip(source, place.client, frames.TCP, summed)

    more = 20 if family == 4 else 40
    assert pair.serving.run(OUT, answer(place.pod, PORT, 1400))[1] == answer(pair.frontend, 80, 1400 - more)


class XdpNode(Node):
    """The same tables, before the XDP program."""

    def carry(self, program: int, packet: bytes) -> tuple[int, bytes]:
        framed = frames.frame(packet)
        result = bpf.run_once(program, framed, b"")
        return result.value, result.packet[14:]


@pytest.fixture(scope="module")
def xdp_program(both: tuple[Programs, Programs]) -> Iterator[int]:
    parsed = object_file.parse(programs.unpack(xdp.OBJECT))
    both[0].maps.ensure(parsed.maps, {})
    program = load_programs(parsed, both[0].maps, {})["xdp"]
    yield program
    os.close(program)


def test_xdp_touches_nothing_that_it_passes_on(family: int, xdp_program: int, both: tuple[Programs, Programs]) -> None:
    """No way leads to the endpoint from here: tc serves the connection, from the entries that XDP has made."""
    node = XdpNode(PLACES[family], both[0])
    place = node.place
    node.frontend(layout.MASQUERADE)
    packet = frames.tcp(place.client, 40000, place.vip, 80)
    for others in (frames.tcp(place.client, 1, place.pod, 2), frames.echo(place.client, place.vip),
                   frames.tcp(place.client, 40000, place.vip, 81), *frames.fragments(packet, 8)):  # fmt: skip
        assert node.carry(xdp_program, others) == (XDP_PASS, others)
    assert node.maps[f"flows{family}"].dump() == {}
    assert node.carry(xdp_program, packet) == (XDP_PASS, packet)
    held = node.maps[f"flows{family}"].dump()
    assert len(held) == 4
    assert node.run(IN, packet)[1] == frames.tcp(place.client, 40000, place.pod, PORT)
    assert set(node.maps[f"flows{family}"].dump()) == set(held)


@pytest.mark.parametrize(
    ("answer", "flags", "reason"),
    [(layout.DROP, 0, "no-local-endpoint"), (layout.DNAT, layout.FRONTEND_RANGES, "source-range")],
)
def test_xdp_drops_what_must_be_silent(
    family: int, answer: int, flags: int, reason: str, xdp_program: int, both: tuple[Programs, Programs]
) -> None:
    node = XdpNode(PLACES[family], both[0])
    node.frontend(answer, flags)
    packet = frames.tcp(node.place.client, 40000, node.place.vip, 80)
    assert node.carry(xdp_program, packet)[0] == XDP_DROP
    assert node.reason(reason) == 1


def test_xdp_leaves_refusals_to_tc(family: int, xdp_program: int, both: tuple[Programs, Programs]) -> None:
    node = XdpNode(PLACES[family], both[0])
    node.frontend(layout.REJECT)
    packet = frames.tcp(node.place.client, 40000, node.place.vip, 80)
    assert node.carry(xdp_program, packet) == (XDP_PASS, packet)
    assert node.reason("no-endpoint") == 0
