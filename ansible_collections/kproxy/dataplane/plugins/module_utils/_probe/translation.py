# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where a connection was led, and whom the endpoint sees, as the kernel knows it: no endpoint has to cooperate.

Packets that nftables translates are known to connection tracking. A socket that an eBPF program led elsewhere has the
endpoint as its peer; connection tracking then knows the flow, if at all, as one that was dialled so.
"""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import Answer
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    family_of,
    format_address,
    format_socket_address,
    parse_address,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NUMBERS
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.peers import End


class Connection(NamedTuple):
    """One connection as its client sees it."""

    protocol: str
    source: str
    source_port: int
    address: str
    port: int


class Led(NamedTuple):
    """Where a connection was led, empty for nowhere, and the address that the endpoint sees, empty if not known."""

    endpoint: str = ""
    seen: str = ""


def led(table: Conntrack, connection: Connection, peer: End | None) -> Led:
    """Return where a connection was led.

    Args:
        table: connection tracking of the node.
        connection: the one to look up.
        peer: of the client's socket, if it has one.

    Raises:
        KernelError: connection tracking does not answer.
    """
    dialled = (connection.address, connection.port)
    # The socket first: what connection tracking has for the address dialled may be of an earlier one by nftables.
    answer = _answer(table, connection, peer or dialled)
    if peer is not None and peer != dialled:
        return _led(*peer, "" if answer is None else format_address(answer.destination))
    if answer is None or (format_address(answer.source), answer.source_port) == dialled:
        return Led()
    return _led(format_address(answer.source), answer.source_port, format_address(answer.destination))


def _led(address: str, port: int, seen: str) -> Led:
    return Led(format_socket_address(parse_address(address), port), seen)


def _answer(table: Conntrack, connection: Connection, destination: End) -> Answer | None:
    source, address = parse_address(connection.source), parse_address(destination[0])
    return table.answer(
        family_of(address),
        NUMBERS[connection.protocol],
        (source, connection.source_port),
        (address, destination[1]),
    )
