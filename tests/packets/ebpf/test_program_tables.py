"""The packet programs by tables: packets go in one by one (BPF_PROG_TEST_RUN), verdicts and every byte are compared.

A row is a conversation: what each hook gets and what it makes of it. No namespace, no device, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from tests.packets.ebpf import frames
from tests.packets.ebpf.frames import ACK, FIN, SYN, packed
from tests.packets.ebpf.loaded_programs import Programs
from tests.packets.ebpf.program_node import (
    IN,
    LOOPBACK_IFINDEX,
    OUT,
    PLACES,
    PRESENT,
    REDIRECT,
    SERVICE,
    SHOT,
    UNSPEC,
    Build,
    Node,
    Place,
    Step,
    play,
)

Conversation = Callable[[Place, Build], list[Step]]


def there_and_back(p: Place, packet: Build) -> list[Step]:
    """Translated to the endpoint, and back to what was dialled."""
    return [
        Step(IN, packet(p.client, 40000, p.vip, 80), packet(p.client, 40000, p.pod, 8080)),
        Step(OUT, packet(p.client, 40000, p.pod, 8080)),
        Step(OUT, packet(p.pod, 8080, p.client, 40000), packet(p.vip, 80, p.client, 40000)),
        Step(IN, packet(p.client, 40000, p.vip, 80), packet(p.client, 40000, p.pod, 8080)),
    ]


def of_others(p: Place, packet: Build) -> list[Step]:
    return [
        Step(hook, packet(source, 40000, destination, 8080))
        for hook in (IN, OUT)
        for source, destination in ((p.client, p.pod), (p.pod, p.client), (p.other_pod, p.client))
    ]


def to_the_node_itself(p: Place, packet: Build) -> list[Step]:
    return [Step(IN, packet(p.client, 40000, p.node, 22)), Step(OUT, packet(p.node, 22, p.client, 40000))]


def unsummed(*where: str | int) -> bytes:
    return frames.udp(*where, unsummed=True)  # type: ignore[arg-type]


def tcp(source: str, sport: int, destination: str, dport: int) -> bytes:
    """Return the first segment of either side: clients begin, whoever has the lower port answers."""
    return frames.tcp(source, sport, destination, dport, SYN if sport > dport else SYN | ACK)


PROTOCOLS = {frames.TCP: tcp, frames.UDP: frames.udp}


@pytest.mark.parametrize("conversation", [there_and_back, of_others, to_the_node_itself])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_conversations(node: Node, protocol: int, conversation: Conversation) -> None:
    node.frontend(protocol=protocol)
    build: Build = PROTOCOLS[protocol]
    play(node, conversation(node.place, build))


def test_a_datagram_without_checksum_keeps_none(node: Node) -> None:
    if node.place.family == 4:
        node.frontend(protocol=frames.UDP)
        play(node, there_and_back(node.place, unsummed))
    else:
        # IPv6 demands one (RFC 8200, section 8.1), and a checksum of zero is never made.
        node.frontend(protocol=frames.UDP)
        _verdict, after = node.run(IN, frames.udp(node.place.client, 40000, node.place.vip, 80))
        assert after[46:48] != b"\0\0"


def test_masqueraded_there_and_back(node: Node) -> None:
    p = node.place
    node.frontend(layout.MASQUERADE)
    play(node, [Step(IN, frames.tcp(p.client, 40000, p.vip, 80), frames.tcp(p.client, 40000, p.pod, 8080))])
    _verdict, sent = node.run(OUT, frames.tcp(p.client, 40000, p.pod, 8080))
    port = int.from_bytes(sent[20:22] if p.family == 4 else sent[40:42], "big")
    assert 16384 <= port < 30000
    assert sent == frames.tcp(p.node, port, p.pod, 8080)
    back = SYN | ACK
    play(node, [
        Step(IN, frames.tcp(p.pod, 8080, p.node, port, back), frames.tcp(p.pod, 8080, p.client, 40000, back)),
        Step(OUT, frames.tcp(p.pod, 8080, p.client, 40000, back), frames.tcp(p.vip, 80, p.client, 40000, back)),
    ])  # fmt: skip


@pytest.mark.parametrize("masquerade", [True, False])
def test_a_pod_that_reaches_itself_sees_the_node(node: Node, masquerade: bool) -> None:
    p = node.place
    node.settings(masquerade=masquerade)
    node.endpoint(layout.ENDPOINT_LOCAL)
    node.frontend()
    verdict, _after = node.run(IN, frames.tcp(p.pod, 40000, p.vip, 80))
    if masquerade:
        assert verdict == UNSPEC
        _verdict, sent = node.run(OUT, frames.tcp(p.pod, 40000, p.pod, 8080))
        assert packed(p.node) in sent[:40]
    else:
        assert verdict == SHOT
        assert node.reason("no-snat-port") == 1


class Refusal(NamedTuple):
    """A packet that no endpoint gets."""

    verdict: int
    reason: str


DROPPED_BY_POLICY = Refusal(SHOT, "no-local-endpoint")
REFUSED = Refusal(REDIRECT, "no-endpoint")
UNDEFINED = Refusal(REDIRECT, "undefined-port")
UNUSED = Refusal(SHOT, "unused-cluster-ip")
NOT_IN_RANGES = Refusal(SHOT, "source-range")

Prepare = Callable[[Node], None]
REFUSALS = [
    pytest.param(lambda n: n.frontend(layout.DROP), lambda p: frames.tcp(p.client, 1, p.vip, 80), DROPPED_BY_POLICY,
                 id="drop"),
    pytest.param(lambda n: n.frontend(layout.REJECT), lambda p: frames.tcp(p.client, 1, p.vip, 80), REFUSED,
                 id="reject"),
    pytest.param(lambda n: n.frontend((layout.REJECT, 0, 0)), lambda p: frames.tcp(p.client, 1, p.vip, 80), REFUSED,
                 id="reject-outsiders"),
    pytest.param(lambda n: n.frontend((0, layout.DROP, 0)), lambda p: frames.tcp(p.other_pod, 1, p.vip, 80),
                 DROPPED_BY_POLICY, id="drop-pods"),
    pytest.param(lambda n: n.frontend(), lambda p: frames.tcp(p.client, 1, p.vip, 81), UNDEFINED, id="undefined-port"),
    pytest.param(lambda n: n.frontend(), lambda p: frames.udp(p.client, 1, p.vip, 80), UNDEFINED, id="other-protocol"),
    pytest.param(lambda n: n.frontend(), lambda p: frames.tcp(p.client, 1, p.unused, 80), UNUSED, id="unused-address"),
    pytest.param(lambda n: n.frontend(), lambda p: frames.sctp(p.client, 1, p.vip, 80, 1), UNDEFINED, id="sctp-init"),
    pytest.param(lambda n: n.frontend(), lambda p: frames.echo(p.client, p.vip), UNDEFINED, id="ping"),
    pytest.param(lambda n: n.frontend(), lambda p: frames.echo(p.client, p.unused), UNUSED, id="ping-unused"),
    pytest.param(lambda n: n.frontend(0, layout.FRONTEND_RANGES), lambda p: frames.tcp(p.client, 1, p.vip, 80),
                 NOT_IN_RANGES, id="source-range"),
    pytest.param(lambda n: n.frontend(layout.REJECT, ip=""), lambda p: frames.tcp(p.client, 1, p.node, 80), REFUSED,
                 id="node-port"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "packet", "wanted"), REFUSALS)
def test_refusals(node: Node, prepare: Prepare, packet: Callable[[Place], bytes], wanted: Refusal) -> None:
    prepare(node)
    before = packet(node.place)
    after = frames.refusal(before) if wanted.verdict == REDIRECT else before
    assert node.run(IN, before) == (wanted.verdict, after)
    assert node.reason(wanted.reason) == 1
    assert sum(map(node.reason, layout.REASONS)) == 1


def elsewhere(node: Node) -> None:
    node.frontend((layout.ELSEWHERE,) * 3)


def draining(node: Node) -> None:
    node.frontend()
    node.settings(layout.DRAINING)


PASSED = [
    pytest.param(elsewhere, lambda p: frames.tcp(p.client, 1, p.vip, 80), id="carried-elsewhere"),
    pytest.param(draining, lambda p: frames.tcp(p.client, 1, p.vip, 80), id="draining"),
    pytest.param(draining, lambda p: frames.echo(p.client, p.vip), id="draining-ping"),
    pytest.param(Node.frontend, lambda p: frames.tcp(p.client, 1, p.vip, 80, ACK), id="middle-of-a-connection"),
    pytest.param(Node.frontend, lambda p: frames.sctp(p.client, 1, p.vip, 80, 0), id="sctp-data"),
    pytest.param(Node.frontend, lambda p: frames.ip(p.client, p.vip, 47, b"\0" * 8), id="gre"),
    pytest.param(Node.frontend, lambda p: frames.ip(p.client, p.vip, frames.TCP, b"\0\x01\0\x50"), id="cut-short"),
    pytest.param(Node.frontend, lambda p: frames.tcp(p.client, 1, p.node, 80), id="no-node-port"),
]


@pytest.mark.parametrize(("prepare", "packet"), PASSED)
def test_what_passes_as_it_is(node: Node, prepare: Prepare, packet: Callable[[Place], bytes]) -> None:
    prepare(node)
    before = packet(node.place)
    assert node.run(IN, before) == (UNSPEC, before)
    assert not any(map(node.reason, layout.REASONS))


def test_source_ranges_that_match(node: Node) -> None:
    p = node.place
    node.frontend(0, layout.FRONTEND_RANGES)
    node.put("ranges", layout.range_key(SERVICE, 8 * len(packed(p.client)), packed(p.client)), PRESENT)
    play(
        node,
        [
            Step(IN, frames.tcp(p.client, 1, p.vip, 80), frames.tcp(p.client, 1, p.pod, 8080)),
            Step(IN, frames.tcp(p.other_pod, 1, p.vip, 80), verdict=SHOT),
        ],
    )


@pytest.mark.parametrize("by_link", [False, True])
def test_who_is_a_pod(node: Node, by_link: bool) -> None:
    """By its address, or where links are named, by the link alone."""
    p = node.place
    node.settings(layout.POD_BY_LINK if by_link else 0)
    node.frontend((layout.DROP, 0, 0))
    if by_link:
        assert node.run(IN, frames.tcp(p.other_pod, 1, p.vip, 80))[0] == SHOT
        node.maps["pod_links"].put(LOOPBACK_IFINDEX.to_bytes(4, "little"), PRESENT)
    assert node.run(IN, frames.tcp(p.client, 1, p.vip, 80))[0] == (UNSPEC if by_link else SHOT)
    assert node.run(IN, frames.tcp(p.other_pod, 1, p.vip, 80))[0] == UNSPEC


@pytest.mark.parametrize(
    ("exact", "node_port", "translated"),
    [
        pytest.param(None, 0, True, id="node-port"),
        pytest.param(layout.REJECT, 0, True, id="node-port-where-the-address-refuses"),
        pytest.param((layout.DROP, 0, 0), 0, False, id="address-that-leads-the-node-somewhere"),
    ],
)
def test_node_ports(node: Node, exact: int | tuple[int, int, int] | None, node_port: int, translated: bool) -> None:
    p = node.place
    if exact is not None:
        node.frontend(exact, ip=p.node)
    node.frontend(node_port, ip="")
    verdict, after = node.run(IN, frames.tcp(p.client, 1, p.node, 80))
    assert (verdict == UNSPEC and after == frames.tcp(p.client, 1, p.pod, 8080)) is translated


OWN = [
    pytest.param(lambda n: n.frontend(layout.DROP), lambda p: frames.tcp(p.node, 1, p.vip, 80), SHOT, id="drop"),
    pytest.param(lambda n: n.frontend(0, layout.FRONTEND_RANGES), lambda p: frames.tcp(p.node, 1, p.vip, 80), SHOT,
                 id="source-range"),
    pytest.param(Node.frontend, lambda p: frames.tcp(p.node, 1, p.unused, 80), SHOT, id="unused-address"),
    pytest.param(Node.frontend, lambda p: frames.tcp(p.node, 1, p.vip, 80), UNSPEC, id="never-translated"),
    pytest.param(Node.frontend, lambda p: frames.tcp(p.node, 1, p.client, 80), UNSPEC, id="to-others"),
    pytest.param(Node.frontend, lambda p: frames.echo(p.node, p.unused), SHOT, id="ping-unused"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "packet", "verdict"), OWN)
def test_packets_of_the_node_itself(
    node: Node, prepare: Prepare, packet: Callable[[Place], bytes], verdict: int
) -> None:
    prepare(node)
    before = packet(node.place)
    assert node.run(OUT, before, forwarded=False) == (verdict, before)
    # What was only forwarded has met the ingress program, which has decided.
    assert node.run(OUT, before, forwarded=True)[1] == before


def test_fragments_follow_the_first_one(node: Node) -> None:
    p = node.place
    node.frontend(protocol=frames.UDP)
    dialled = frames.fragments(frames.udp(p.client, 40000, p.vip, 80), 8)
    wanted = frames.fragments(frames.udp(p.client, 40000, p.pod, 8080), 8)
    play(node, [Step(IN, before, after) for before, after in zip(dialled, wanted)])
    answered = frames.fragments(frames.udp(p.pod, 8080, p.client, 40000), 8)
    restored = frames.fragments(frames.udp(p.vip, 80, p.client, 40000), 8)
    play(node, [Step(OUT, before, after) for before, after in zip(answered, restored)])


def test_a_fragment_before_its_first_passes(node: Node) -> None:
    p = node.place
    node.frontend(protocol=frames.UDP)
    _first, later = frames.fragments(frames.udp(p.client, 40000, p.vip, 80), 8)
    play(node, [Step(IN, later)])


def test_options_of_ipv4_move_the_segment(loaded: Programs) -> None:
    made = Node(PLACES[4], loaded)
    p = made.place
    made.frontend()
    record_route = b"\x07\x07\x04\0\0\0\0\0"
    play(made, [Step(IN, frames.tcp(p.client, 1, p.vip, 80, options=record_route),
                     frames.tcp(p.client, 1, p.pod, 8080, options=record_route))])  # fmt: skip


def quoted(translated: bytes, found: bytes) -> bytes:
    """Return a datagram as an error quotes it: addresses and ports restored, its own checksum as it was found."""
    at = (20 if translated[0] >> 4 == 4 else 40) + 6
    return translated[:at] + found[at : at + 2] + translated[at + 2 :]


def test_errors_about_a_translated_packet_name_what_was_dialled(node: Node) -> None:
    p = node.place
    node.frontend(protocol=frames.UDP)
    dialled, sent = frames.udp(p.client, 40000, p.vip, 80), frames.udp(p.client, 40000, p.pod, 8080)
    answered, restored = frames.udp(p.pod, 8080, p.client, 40000), frames.udp(p.vip, 80, p.client, 40000)
    play(node, [
        Step(IN, dialled, sent),
        # The endpoint has no such port and says so to the client, on the way out.
        Step(OUT, frames.unreachable(p.pod, p.client, sent),
             frames.unreachable(p.vip, p.client, quoted(dialled, sent))),
        # A router on the way says it.
        Step(OUT, frames.unreachable(p.node, p.client, sent),
             frames.unreachable(p.node, p.client, quoted(dialled, sent))),
        # The client has closed its port, and says so to what it dialled.
        Step(IN, frames.unreachable(p.client, p.vip, restored),
             frames.unreachable(p.client, p.pod, quoted(answered, restored))),
        # About somebody else's packet.
        Step(OUT, frames.unreachable(p.pod, p.client, frames.udp(p.client, 40001, p.pod, 8080))),
    ])  # fmt: skip


def test_affinity_keeps_a_client_whatever_its_port(node: Node) -> None:
    p = node.place
    number = layout.set_number(SERVICE, False)
    node.put("slots", layout.slot_key(number, 1), layout.endpoint(packed(p.other_pod), 8080))
    for ip in (p.pod, p.other_pod):
        node.put("members", layout.member_key(number, layout.endpoint(packed(ip), 8080)), bytes(4))
    value = layout.FrontendValue(SERVICE, 2, 0, 60, (0, 0, 0), layout.FRONTEND_AFFINITY)
    node.put("frontends", layout.frontend_key(p.family, packed(p.vip), frames.TCP, 80), value.pack(p.family))
    width = len(packed(p.pod))
    at = 16 if p.family == 4 else 24
    chosen = {node.run(IN, frames.tcp(p.client, port, p.vip, 80))[1][at : at + width] for port in range(1000, 1040)}
    assert len(chosen) == 1
    # Gone from the members: the pin counts no more, though the slot is still there.
    (held,) = chosen
    node.maps[f"members{p.family}"].delete([layout.member_key(number, layout.endpoint(held, 8080))])
    after = {node.run(IN, frames.tcp(p.client, port, p.vip, 80))[1][at : at + width] for port in range(2000, 2040)}
    assert len(after - {held}) == 1


def test_a_new_connection_on_the_ports_of_an_ended_one(node: Node) -> None:
    p = node.place
    node.frontend()
    play(node, [
        Step(IN, frames.tcp(p.client, 1, p.vip, 80), frames.tcp(p.client, 1, p.pod, 8080)),
        Step(IN, frames.tcp(p.client, 1, p.vip, 80, FIN | ACK), frames.tcp(p.client, 1, p.pod, 8080, FIN | ACK)),
        Step(IN, frames.tcp(p.client, 1, p.vip, 80, ACK), frames.tcp(p.client, 1, p.pod, 8080, ACK)),
    ])  # fmt: skip
    node.frontend(layout.DROP)
    # Packets of the old one go on; a SYN is asked about anew.
    play(node, [
        Step(IN, frames.tcp(p.client, 1, p.vip, 80, ACK), frames.tcp(p.client, 1, p.pod, 8080, ACK)),
        Step(IN, frames.tcp(p.client, 1, p.vip, 80), verdict=SHOT),
    ])  # fmt: skip


def test_a_set_without_its_slot_is_refused(node: Node) -> None:
    p = node.place
    node.frontend()
    node.maps[f"slots{p.family}"].delete([layout.slot_key(layout.set_number(SERVICE, False), 0)])
    before = frames.tcp(p.client, 1, p.vip, 80)
    assert node.run(IN, before) == (REDIRECT, frames.refusal(before))
    assert node.reason("missing-slot") == 1


def test_draining_goes_on_with_the_flows_there_are(node: Node) -> None:
    p = node.place
    node.frontend()
    play(node, [Step(IN, frames.tcp(p.client, 1, p.vip, 80), frames.tcp(p.client, 1, p.pod, 8080))])
    node.settings(layout.DRAINING)
    play(node, [
        Step(IN, frames.tcp(p.client, 1, p.vip, 80, ACK), frames.tcp(p.client, 1, p.pod, 8080, ACK)),
        Step(OUT, frames.tcp(p.pod, 8080, p.client, 1, ACK), frames.tcp(p.vip, 80, p.client, 1, ACK)),
        Step(IN, frames.tcp(p.client, 2, p.vip, 80)),
    ])  # fmt: skip
