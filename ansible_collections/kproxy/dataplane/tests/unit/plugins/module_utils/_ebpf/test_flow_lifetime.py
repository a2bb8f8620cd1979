# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A connection's entries go together: by what any of them has seen, and not before all have been idle."""

from __future__ import annotations

import ipaddress
import struct

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flow_lifetime import ended
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flows import (
    CLOSING,
    EGRESS,
    FORWARD,
    INGRESS,
    RESET,
    UNANSWERED,
    pack_key,
)

TCP, UDP = 6, 17
TUNNEL, OPTION = 0x04, 0x08
HOUR, DAY = 3600, 86400
NOW = 10**15
ENDS = {
    4: ("198.51.100.9", "192.0.2.11", "10.244.1.5", "192.0.2.12"),
    6: ("2001:db8:f::9", "2001:db8:1::11", "fd00:10:244:1::5", "2001:db8:1::12"),
}
#: What a connection consists of: client -> frontend and client -> endpoint, and two entries of the way back.
A, B, C, D = "client-in", "client-out", "endpoint-in", "endpoint-out"

Entries = dict[str, tuple[bytes, bytes]]


def entry(
    pair: tuple[int, int], to: tuple[int, int], hook: int, flags: int, protocol: int, family: int
) -> tuple[bytes, bytes]:
    ports = {0: 40000, 1: 30080, 2: 8080, 3: 17000}
    ends = [(ipaddress.ip_address(ENDS[family][end]).packed, ports[end]) for end in (*pair, *to)]
    key = pack_key(ends[0], ends[1], protocol, hook)
    value = bytes(8) + pack_key(ends[2], ends[3], 0, 0)[:-4] + struct.pack("=IBxxxI", 1, flags, 0)
    return key, value


def connection(family: int, protocol: int = TCP, direct: int = 0) -> Entries:
    """All entries of one connection; direct: those of the dialled node under direct return."""
    there = entry((0, 2), (0, 1) if direct else (3, 2), EGRESS, FORWARD | direct, protocol, family)
    found = {A: entry((0, 1), (0, 2), INGRESS, FORWARD, protocol, family), B: there}
    if not direct:
        found[C] = entry((2, 3), (2, 0), INGRESS, 0, protocol, family)
        found[D] = entry((2, 0), (1, 0), EGRESS, 0, protocol, family)
    return found


def at(held: Entries, idle: dict[str, int], flags: dict[str, int], other: int) -> dict[bytes, bytes]:
    """Return the map's content. idle: seconds since each entry's last packet, `other` without; flags: more of them."""
    found = {}
    for name, (key, value) in held.items():
        seen = NOW - idle.get(name, other) * 10**9
        place = len(key) + 8
        marked = bytes([value[place] | flags.get(name, 0)])
        found[key] = struct.pack("=q", seen) + value[8:place] + marked + value[place + 1 :]
    return found


def keys_of(connections: list[list[bytes]]) -> set[bytes]:
    """Return all keys; none may be told twice."""
    found = [key for connection in connections for key in connection]
    assert len(set(found)) == len(found)
    return set(found)


ROWS = [
    # name, protocol, flags, idle seconds, of some entries, is it gone
    ("fresh", TCP, {}, 1, {}, False),
    ("established", TCP, {}, DAY - 1, {}, False),
    ("established for too long", TCP, {}, DAY + 1, {}, True),
    ("the last one to speak counts", TCP, {}, DAY + 1, {D: 60}, False),
    ("reset by the client", TCP, {A: CLOSING | RESET, B: CLOSING | RESET}, 11, {}, True),
    ("reset by the endpoint", TCP, {C: CLOSING | RESET, D: CLOSING | RESET}, 11, {}, True),
    ("reset just now", TCP, {C: CLOSING | RESET, D: CLOSING | RESET}, 9, {}, False),
    ("closed by both", TCP, dict.fromkeys((A, B, C, D), CLOSING), 11, {}, True),
    ("closed by both, and one still speaks", TCP, dict.fromkeys((A, B, C, D), CLOSING), 11, {A: 3}, False),
    ("closed by the client", TCP, {A: CLOSING, B: CLOSING}, HOUR - 1, {}, False),
    ("closed by the client for too long", TCP, {A: CLOSING, B: CLOSING}, HOUR + 1, {}, True),
    ("closed by the endpoint", TCP, {C: CLOSING, D: CLOSING}, HOUR - 1, {}, False),
    ("closed by the endpoint for too long", TCP, {C: CLOSING, D: CLOSING}, HOUR + 1, {}, True),
    ("closed by the endpoint, unacknowledged", TCP, {C: CLOSING, D: CLOSING}, 119, {A: 200, B: 200}, False),
    ("closed by the endpoint, and nobody is there", TCP, {C: CLOSING, D: CLOSING}, 121, {A: 200, B: 200}, True),
    ("closed by the client, and nobody is there", TCP, {A: CLOSING, B: CLOSING}, 121, {C: 200, D: 200}, True),
    ("closed by the client, who has heard more", TCP, {A: CLOSING, B: CLOSING}, 121, {C: 122, D: 122}, False),
    ("unanswered", TCP, {D: UNANSWERED}, 119, {}, False),
    ("unanswered for too long", TCP, {D: UNANSWERED}, 121, {}, True),
    ("unanswered, and asked again", TCP, {D: UNANSWERED}, 180, {A: 60, B: 60}, False),
    ("refused", TCP, {C: CLOSING | RESET, D: CLOSING | RESET}, 11, {A: 12, B: 12}, True),
    ("datagrams", UDP, {}, 179, {}, False),
    ("no datagrams any more", UDP, {}, 181, {}, True),
    ("datagrams of the client", UDP, {}, 600, {A: 5, B: 5}, False),
    ("datagrams of the endpoint", UDP, {}, 600, {C: 5, D: 5}, False),
    # A datagram has no flags to be marked by.
    ("unanswered datagrams", UDP, {D: UNANSWERED}, 150, {}, False),
]  # fmt: skip


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("masqueraded", [True, False], ids=["masqueraded", "plain"])
@pytest.mark.parametrize(
    ("protocol", "flags", "idle", "some", "gone"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_connection(
    protocol: int, flags: dict[str, int], idle: int, some: dict[str, int], gone: bool, masqueraded: bool, family: int
) -> None:
    entries = connection(family, protocol)
    if not masqueraded:
        entries = {name: entries[name] for name in (A, D)}
    held = at(entries, some, flags, idle)
    assert keys_of(ended(held, NOW)) == (set(held) if gone else set())


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("direct", [TUNNEL, OPTION])
@pytest.mark.parametrize(
    ("flags", "idle", "some", "gone"),
    [
        ({}, DAY - 1, {}, False),
        ({}, DAY + 1, {B: 60}, False),
        ({}, DAY + 1, {}, True),
        # The endpoint's answers are not seen here: it may have closed or not.
        ({A: CLOSING, B: CLOSING}, 119, {}, False),
        ({A: CLOSING, B: CLOSING}, 121, {}, True),
        ({A: CLOSING | RESET, B: CLOSING | RESET}, 11, {}, True),
    ],
)
def test_direct_return_is_seen_from_one_side(
    flags: dict[str, int], idle: int, some: dict[str, int], gone: bool, direct: int, family: int
) -> None:
    held = at(connection(family, direct=direct), some, flags, idle)
    assert keys_of(ended(held, NOW)) == (set(held) if gone else set())


@pytest.mark.parametrize("family", [4, 6])
def test_a_port_that_no_connection_leaves_by_any_more_is_given_back(family: int) -> None:
    """The client came again from its port before its ended connection was collected, and got another port of ours."""
    entries = connection(family)
    now_by = entries[B][1]
    place = len(entries[B][0])  # of the source port
    later = at({**entries, B: (entries[B][0], now_by[:place] + b"\x50\x00" + now_by[place + 2 :])}, {C: 11}, {}, 1)
    assert ended(later, NOW) == [[entries[C][0]]]


@pytest.mark.parametrize("family", [4, 6])
def test_entries_of_others_stay(family: int) -> None:
    """An endpoint that dials what was its client has an entry of the same two ends."""
    mine = at(connection(family), {}, {A: CLOSING | RESET}, 11)
    other = at({D: entry((2, 1), (3, 1), EGRESS, 0, TCP, family)}, {}, {}, HOUR)
    turned = at({A: entry((2, 1), (2, 0), INGRESS, FORWARD, TCP, family)}, {}, {}, HOUR)
    assert keys_of(ended({**mine, **other, **turned}, NOW)) == set(mine)
