# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Entries of flows4/6: a connection is two or four (src/flow_family.h), each with the time of its last packet."""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

FORWARD = 0x01
CLOSING = 0x02
#: The endpoint's node gets the client's own packet: inside another header, or with the frontend as an option.
DIRECT = 0x04 | 0x08
#: No SYN and no RST has come from the endpoint.
UNANSWERED = 0x20
RESET = 0x40
INGRESS, EGRESS = 0, 1
TCP = 6
#: The first and the last source port of masqueraded connections (src/flow.h).
SOURCE_PORTS = (16384, 29999)


#: A packed address and a port.
End = tuple[bytes, int]


class Flow(NamedTuple):
    """One entry; addresses packed."""

    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    protocol: int
    hook: int
    to_source: bytes
    to_source_port: int
    to_destination: bytes
    to_destination_port: int
    seen: int
    service: int
    flags: int

    @property
    def endpoint(self) -> tuple[bytes, int]:
        """The endpoint of the connection this entry belongs to."""
        if not self.flags & FORWARD:
            return self.source, self.source_port
        if self.hook == INGRESS:
            return self.to_destination, self.to_destination_port
        return self.destination, self.destination_port


def pack_key(source: End, destination: End, protocol: int, hook: int) -> bytes:
    """Return the key of a packet from one end to another, as a hook meets it."""
    return source[0] + destination[0] + struct.pack("!HHBBH", source[1], destination[1], protocol, hook, 0)


def unpack_flow(key: bytes, value: bytes) -> Flow:
    """Read one element of flows4/6."""
    width = 4 if len(key) == 16 else 16
    sport, dport, protocol, hook = struct.unpack_from("!HHBB", key, 2 * width)
    (seen,) = struct.unpack_from("=q", value)
    to_sport, to_dport = struct.unpack_from("!HH", value, 8 + 2 * width)
    service, flags = struct.unpack_from("=IB", value, 8 + 2 * width + 4)
    return Flow(key[:width], sport, key[width : 2 * width], dport, protocol, hook, value[8 : 8 + width], to_sport,
                value[8 + width : 8 + 2 * width], to_dport, seen, service, flags)  # fmt: skip


def stale(flow: Flow, serving: Collection[tuple[bytes, int]]) -> bool:
    """Whether a UDP entry leads to an endpoint that serves no more; TCP ends by itself."""
    return flow.protocol != TCP and flow.endpoint not in serving
