# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Connection tracking messages (include/uapi/linux/netfilter/nfnetlink_conntrack.h) and our flow tuple: pure."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    attribute,
    attribute_map,
    nested,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_protocol import (
    FAMILY_OF_NFPROTO,
    nfgenmsg,
)

UDP = 17

_SUBSYSTEM = 1
NEW, GET, DELETE, GET_STATS = (_SUBSYSTEM << 8 | operation for operation in (0, 1, 2, 5))

_TUPLE_ORIGINAL, _TUPLE_REPLY, _STATUS, _TIMEOUT, _ID, _ZONE, _FILTER = 1, 2, 3, 7, 12, 18, 25
_TUPLE_IP, _TUPLE_PROTO, _TUPLE_ZONE = 1, 2, 3
_PROTO_NUMBER, _PROTO_SOURCE_PORT, _PROTO_DESTINATION_PORT = 1, 2, 3
_IP_ATTRIBUTES = {4: (1, 2), 6: (3, 4)}  # source, destination
_FILTER_ORIGINAL, _FILTER_REPLY, _FILTER_PROTO_NUMBER = 1, 2, 1 << 3
_STATUS_CONFIRMED = 1 << 3
_STATUS_SEEN_REPLY = 1 << 1
STATS_ENTRIES, STATS_MAX_ENTRIES = 1, 2


class Flow(NamedTuple):
    """One tracked flow: what the client dialled, and who answers.

    Addresses are packed. `reply_source` and `reply_source_port` are the endpoint the flow was translated to; without
    translation they are the destination. `identifier` tells this flow from a later one of the same addresses.
    `replied`: an answer has been seen.
    """

    family: int
    protocol: int
    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    reply_source: bytes
    reply_source_port: int
    zone: int = 0
    identifier: int | None = None
    replied: bool = False


class Answer(NamedTuple):
    """Who answers a flow, and the client that they see: the two ends of its reply direction."""

    source: bytes
    source_port: int
    destination: bytes
    destination_port: int


class Wanted(NamedTuple):
    """Which flows are worth reading: by original destination, or by its port alone (NodePorts)."""

    destinations: Container[tuple[bytes, int]]
    ports: Container[int] = frozenset()


class _Offsets(NamedTuple):
    """Where things are in the two tuples of a flow, whose layout is fixed unless a zone has a direction."""

    head: bytes
    source: slice
    destination: slice
    number: int
    source_port: int
    destination_port: int
    reply_source: slice
    reply_source_port: int
    reply_head: slice
    end: int


def _offsets(family: int) -> _Offsets:
    size = 4 if family == 4 else 16
    body = encode_tuple(_TUPLE_ORIGINAL, family, UDP, (bytes(size), 0), (bytes(size), 0), 0)
    source = 4 + 12
    destination = source + size + 4
    number = destination + size + 4 + 4
    length = len(body)
    return _Offsets(
        body[:12],
        slice(source, source + size),
        slice(destination, destination + size),
        number,
        number + 8,
        number + 16,
        slice(source + length, source + length + size),
        number + 8 + length,
        slice(4 + length, 4 + length + 2),
        4 + 2 * length,
    )


def encode_tuple(
    kind: int, family: int, protocol: int, source: tuple[bytes, int], destination: tuple[bytes, int], zone: int
) -> bytes:
    """Return one direction of a flow as an attribute."""
    source_kind, destination_kind = _IP_ATTRIBUTES[family]
    parts = [
        nested(_TUPLE_IP, attribute(source_kind, source[0]), attribute(destination_kind, destination[0])),
        nested(
            _TUPLE_PROTO,
            attribute(_PROTO_NUMBER, bytes((protocol,))),
            attribute(_PROTO_SOURCE_PORT, struct.pack(">H", source[1])),
            attribute(_PROTO_DESTINATION_PORT, struct.pack(">H", destination[1])),
        ),
    ]
    if zone:
        parts.append(attribute(_TUPLE_ZONE, struct.pack(">H", zone)))
    return nested(kind, *parts)


_LAYOUTS = {family: _offsets(family) for family in (4, 6)}


def dump_request(family: int, protocol: int) -> bytes:
    """Return the body of a dump of one protocol. Kernels before 5.8 ignore the filter: check the answers."""
    flags = attribute(_FILTER_ORIGINAL, struct.pack("=I", _FILTER_PROTO_NUMBER)) + attribute(
        _FILTER_REPLY, struct.pack("=I", 0)
    )
    return (
        nfgenmsg(family)
        + nested(_FILTER, flags)
        + nested(_TUPLE_ORIGINAL, nested(_TUPLE_PROTO, attribute(_PROTO_NUMBER, bytes((protocol,)))))
    )


def lookup_request(family: int, protocol: int, source: tuple[bytes, int], destination: tuple[bytes, int]) -> bytes:
    """Return the body that asks for the one flow that was dialled so."""
    return nfgenmsg(family) + encode_tuple(_TUPLE_ORIGINAL, family, protocol, source, destination, 0)


def decode_answer(payload: memoryview, protocol: int) -> Answer | None:
    """Return the reply direction of the flow in one message; None for another protocol or family."""
    family = FAMILY_OF_NFPROTO.get(payload[0])
    parts = attribute_map(payload, 4)
    if family is None or _TUPLE_REPLY not in parts:
        return None
    ends = list(_tuple_ends(family, parts[_TUPLE_REPLY], protocol))
    return Answer(*ends[0], *ends[1]) if ends else None


def delete_request(flow: Flow) -> bytes:
    """Return the body that deletes exactly this flow: same original tuple, same zone, same identifier if known."""
    body = nfgenmsg(flow.family) + encode_tuple(
        _TUPLE_ORIGINAL,
        flow.family,
        flow.protocol,
        (flow.source, flow.source_port),
        (flow.destination, flow.destination_port),
        0,
    )
    if flow.zone:
        body += attribute(_ZONE, struct.pack(">H", flow.zone))
    if flow.identifier is not None:
        body += attribute(_ID, struct.pack(">I", flow.identifier))
    return body


def insert_request(flow: Flow, timeout_seconds: int) -> bytes:
    """Return the body that makes the kernel track this flow as if a packet had made it."""
    source = (flow.source, flow.source_port)
    return (
        nfgenmsg(flow.family)
        + encode_tuple(
            _TUPLE_ORIGINAL, flow.family, flow.protocol, source, (flow.destination, flow.destination_port), 0
        )
        + encode_tuple(_TUPLE_REPLY, flow.family, flow.protocol, (flow.reply_source, flow.reply_source_port), source, 0)
        + attribute(_STATUS, struct.pack(">I", _STATUS_CONFIRMED | (_STATUS_SEEN_REPLY if flow.replied else 0)))
        + attribute(_TIMEOUT, struct.pack(">I", timeout_seconds))
        + (attribute(_ZONE, struct.pack(">H", flow.zone)) if flow.zone else b"")
    )


def decode_flow(payload: memoryview, protocol: int, wanted: Wanted | None = None) -> Flow | None:
    """Return the flow in one dumped message; None for another protocol or family, or one that is not wanted."""
    family = FAMILY_OF_NFPROTO.get(payload[0])
    if family is None:
        return None
    layout = _LAYOUTS[family]
    if payload[4:16] != layout.head or len(payload) < layout.end or payload[layout.reply_head] != layout.head[:2]:
        return _decode_slowly(family, payload, protocol, wanted)
    if payload[layout.number] != protocol:
        return None
    destination = bytes(payload[layout.destination])
    port = payload[layout.destination_port] << 8 | payload[layout.destination_port + 1]
    if wanted is not None and port not in wanted.ports and (destination, port) not in wanted.destinations:
        return None
    rest = attribute_map(payload, layout.end)
    at, reply_at = layout.source_port, layout.reply_source_port
    return Flow(
        family,
        protocol,
        bytes(payload[layout.source]),
        destination,
        payload[at] << 8 | payload[at + 1],
        port,
        bytes(payload[layout.reply_source]),
        payload[reply_at] << 8 | payload[reply_at + 1],
        _number(rest.get(_ZONE)),
        _number(rest[_ID]) if _ID in rest else None,
        bool(_number(rest.get(_STATUS)) & _STATUS_SEEN_REPLY),
    )


def _decode_slowly(family: int, payload: memoryview, protocol: int, wanted: Wanted | None) -> Flow | None:
    """Decode a flow attribute by attribute: tuples with a zone of their own, or a layout we do not know."""
    parts = attribute_map(payload, 4)
    if _TUPLE_ORIGINAL not in parts or _TUPLE_REPLY not in parts:
        return None
    ends = [list(_tuple_ends(family, parts[kind], protocol)) for kind in (_TUPLE_ORIGINAL, _TUPLE_REPLY)]
    if not all(ends):
        return None
    (source, destination), (reply_source, _reply_destination) = ends
    if wanted is not None and destination[1] not in wanted.ports and destination not in wanted.destinations:
        return None
    zone = parts.get(_ZONE) or attribute_map(parts[_TUPLE_ORIGINAL]).get(_TUPLE_ZONE)
    identifier = _number(parts[_ID]) if _ID in parts else None
    replied = bool(_number(parts.get(_STATUS)) & _STATUS_SEEN_REPLY)
    ports = (source[1], destination[1])
    return Flow(family, protocol, source[0], destination[0], *ports, *reply_source, _number(zone), identifier, replied)


def _tuple_ends(family: int, value: memoryview, protocol: int) -> Iterator[tuple[bytes, int]]:
    """Yield source and destination of one direction; nothing if it is of another protocol."""
    parts = attribute_map(value)
    addresses = attribute_map(parts[_TUPLE_IP])
    numbers = attribute_map(parts[_TUPLE_PROTO])
    if numbers[_PROTO_NUMBER][0] != protocol:
        return
    for address, port in zip(_IP_ATTRIBUTES[family], (_PROTO_SOURCE_PORT, _PROTO_DESTINATION_PORT)):
        yield bytes(addresses[address]), _number(numbers.get(port))


def _number(value: memoryview | None) -> int:
    return 0 if value is None else int.from_bytes(value, "big")
