"""What a node answers to packets that it refuses, byte for byte, and where it must keep silent.

Every checksum that is compared was computed here, from the bytes (frames.refusal).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from tests.packets.ebpf import frames
from tests.packets.ebpf.loaded_programs import CPUS, Programs
from tests.packets.ebpf.program_node import IN, OUT, PLACES, REDIRECT, SENDER, SHOT, UNSPEC, Node, Place

BURST, PER_SECOND = 100, 1000
RECORD_ROUTE = b"\x07\x07\x04\0\0\0\0\0"


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def node(request: pytest.FixtureRequest, loaded: Programs) -> Node:
    return refusing(request.param, loaded)


def refusing(family: int, loaded: Programs) -> Node:
    made = Node(PLACES[family], loaded)
    made.frontend(layout.REJECT)
    made.frontend(layout.REJECT, protocol=frames.UDP)
    return made


def counts(node: Node) -> dict[str, int]:
    return {name: count for name in layout.REASONS if (count := node.reason(name))}


def long_udp(source: str, sport: int, destination: str, dport: int, length: int) -> bytes:
    datagram = struct.pack("!HHHH", sport, dport, 8 + length, 0) + os.urandom(length)
    return frames.ip(source, destination, frames.UDP, frames.summed(datagram, 6, source, destination, frames.UDP))


Packet = Callable[[Place], bytes]
ANSWERED = [
    pytest.param(lambda p: frames.tcp(p.client, 40000, p.vip, 80), id="tcp"),
    pytest.param(lambda p: frames.udp(p.client, 40000, p.vip, 80), id="udp"),
    pytest.param(lambda p: frames.udp(p.client, 40000, p.vip, 80, unsummed=True), id="udp-without-checksum"),
    pytest.param(lambda p: long_udp(p.client, 40000, p.vip, 80, 0), id="udp-empty"),
    pytest.param(lambda p: long_udp(p.client, 40000, p.vip, 80, 1), id="udp-odd"),
    pytest.param(lambda p: long_udp(p.client, 40000, p.vip, 80, 1400), id="udp-long"),
    pytest.param(lambda p: frames.fragments(long_udp(p.client, 40000, p.vip, 80, 1400), 800)[0], id="first-fragment"),
    pytest.param(lambda p: frames.echo(p.client, p.vip), id="ping"),
    pytest.param(lambda p: frames.sctp(p.client, 40000, p.vip, 81, 1), id="sctp"),
]
OPTIONS = [
    pytest.param(protocol, options, id=f"{name}-{len(options)}")
    for name, protocol in (("tcp", frames.TCP), ("udp", frames.UDP))
    for options in (RECORD_ROUTE, b"\x01" * 40)
]


@pytest.mark.parametrize("packet", ANSWERED)
def test_the_answer_goes_back_where_it_came_from(node: Node, packet: Packet) -> None:
    before = packet(node.place)
    assert node.run(IN, before) == (REDIRECT, frames.refusal(before))
    # Its own way out leads past the other program of the device.
    assert node.run(OUT, frames.refusal(before)) == (UNSPEC, frames.refusal(before))


@pytest.mark.parametrize(("protocol", "options"), OPTIONS)
def test_ipv4_options_are_quoted(loaded: Programs, protocol: int, options: bytes) -> None:
    node = refusing(4, loaded)
    p = node.place
    plain = (frames.tcp if protocol == frames.TCP else frames.udp)(p.client, 40000, p.vip, 80)
    before = frames.ip(p.client, p.vip, protocol, plain[20:], options=options)
    assert node.run(IN, before) == (REDIRECT, frames.refusal(before))


@pytest.mark.parametrize("value", [0x0000, 0x0001, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF])
def test_whatever_the_checksum_field_held(node: Node, value: int) -> None:
    """Senders that leave checksums to hardware write a part of the sum there."""
    p = node.place
    made = frames.udp(p.client, 40000, p.vip, 80)
    at = (20 if p.family == 4 else 40) + 6
    before = made[:at] + struct.pack("!H", value) + made[at + 2 :]
    assert node.run(IN, before) == (REDIRECT, frames.refusal(before))


def bad_header_checksum(p: Place) -> bytes:
    made = frames.udp(p.client, 40000, p.vip, 80)
    return made[:10] + struct.pack("!H", int.from_bytes(made[10:12], "big") ^ 1) + made[12:]


NOBODY_ELSE = {4: ("0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"), 6: ("::", "::1", "ff02::1")}
SOURCES = [pytest.param(family, source, id=source) for family, held in NOBODY_ELSE.items() for source in held]


@pytest.mark.parametrize(("family", "source"), SOURCES)
def test_no_error_goes_to_an_address_that_is_no_single_host(loaded: Programs, family: int, source: str) -> None:
    node = refusing(family, loaded)
    for before in (frames.udp(source, 40000, node.place.vip, 80), frames.tcp(source, 40000, node.place.vip, 80)):
        assert node.run(IN, before) == (SHOT, before)
    assert counts(node) == {"no-endpoint": 2, "unanswerable": 2}


@pytest.mark.parametrize(("family", "group"), [(4, "233.252.0.80"), (6, "ff3e::80")])
def test_no_error_is_about_a_group(loaded: Programs, family: int, group: str) -> None:
    node = refusing(family, loaded)
    node.frontend(layout.REJECT, ip=group, protocol=frames.UDP)
    before = frames.udp(node.place.client, 40000, group, 80)
    assert node.run(IN, before) == (SHOT, before)
    assert counts(node) == {"no-endpoint": 1, "unanswerable": 1}


@pytest.mark.parametrize("to", ["ffffffffffff", "01005e000001"])
def test_no_error_is_about_what_went_to_everybody_on_the_link(node: Node, to: str) -> None:
    before = frames.udp(node.place.client, 40000, node.place.vip, 80)
    assert node.run(IN, before, ends=(bytes.fromhex(to), SENDER)) == (SHOT, before)
    assert counts(node) == {"no-endpoint": 1, "unanswerable": 1}


def test_what_goes_to_another_host_passes(node: Node) -> None:
    before = frames.udp(node.place.client, 40000, node.place.vip, 80)
    assert node.run(IN, before, ends=(bytes.fromhex("020000000077"), SENDER)) == (UNSPEC, before)
    assert counts(node) == {}


def test_an_ipv4_header_that_was_damaged_is_not_believed(loaded: Programs) -> None:
    node = refusing(4, loaded)
    before = bad_header_checksum(node.place)
    assert node.run(IN, before) == (SHOT, before)
    assert counts(node) == {"no-endpoint": 1, "malformed": 1}


NEVER_REFUSED = [
    pytest.param(lambda p: frames.unreachable(p.client, p.vip, frames.udp(p.vip, 80, p.client, 40000)), id="an-error"),
    pytest.param(lambda p: frames.fragments(long_udp(p.client, 40000, p.vip, 80, 1400), 800)[1], id="later-fragment"),
    pytest.param(lambda p: frames.tcp(p.client, 40000, p.vip, 80, frames.RST), id="reset"),
    pytest.param(lambda p: frames.tcp(p.client, 40000, p.vip, 80, frames.ACK), id="middle-of-a-connection"),
]


@pytest.mark.parametrize("packet", NEVER_REFUSED)
def test_no_error_about_what_asks_for_nothing(node: Node, packet: Packet) -> None:
    before = packet(node.place)
    assert node.run(IN, before) == (UNSPEC, before)
    assert counts(node) == {}


def test_a_node_that_drains_refuses_nothing(node: Node) -> None:
    node.settings(layout.DRAINING)
    for before in (
        frames.tcp(node.place.client, 1, node.place.vip, 80),
        frames.echo(node.place.client, node.place.vip),
    ):
        assert node.run(IN, before) == (UNSPEC, before)


@pytest.fixture
def one_processor() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def full_bucket(node: Node) -> None:
    bpf.map_update(node.maps["refusals"].fd, bytes(4), bytes(8 * CPUS))


def test_refusals_are_limited(node: Node, one_processor: None) -> None:
    before = frames.udp(node.place.client, 40000, node.place.vip, 80)
    full_bucket(node)
    started = time.monotonic_ns()
    verdicts = [node.run(IN, before)[0] for _ in range(10 * BURST)]
    answered = verdicts.count(REDIRECT)
    # What has been paid back meanwhile, and what was there at once.
    assert BURST <= answered <= BURST + 1 + (time.monotonic_ns() - started) * PER_SECOND // 10**9
    assert verdicts.count(SHOT) == len(verdicts) - answered == node.reason("refusal-limit")
    assert node.reason("no-endpoint") == len(verdicts)
    full_bucket(node)
    assert node.run(IN, before)[0] == REDIRECT
