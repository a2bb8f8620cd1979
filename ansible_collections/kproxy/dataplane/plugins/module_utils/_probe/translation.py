# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where a connection was led, and whom the endpoint sees, as the kernel knows it: no endpoint has to cooperate.

Packets that nftables translates are known to connection tracking. A socket that an eBPF program led elsewhere has the
endpoint as its peer; connection tracking then knows the flow, if at all, as one that was dialled so. Packets that eBPF
programs translate are in the flow tables of these.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.packet_path import PacketPath
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.peers import End

#: An address, packed, and a port.
RawEnd = tuple[bytes, int]


class Connection(NamedTuple):
    """One connection as its client sees it."""

    protocol: str
    source: str
    source_port: int
    address: str
    port: int


class Led(NamedTuple):
    """Where a connection was led, empty for nowhere, and the address that the endpoint sees, empty if not known.

    at_socket: it was led there before its first packet, so that the client talks to the endpoint itself.
    """

    endpoint: str = ""
    seen: str = ""
    at_socket: bool = False


def led(table: Conntrack, packet_path: PacketPath, connection: Connection, peer: End | None) -> Led:
    """Return where a connection was led.

    Args:
        table: connection tracking of the node.
        packet_path: the flow tables of the node's eBPF programs.
        connection: the one to look up.
        peer: of the client's socket, if it has one.

    Raises:
        KernelError: connection tracking does not answer.
        OSError: nor do the flow tables.
    """
    dialled = (connection.address, connection.port)
    # The socket first: what connection tracking has for the address dialled may be of an earlier one by nftables.
    answer = _answer(table, connection, peer or dialled)
    if peer is not None and peer != dialled:
        endpoint = format_socket_address(parse_address(peer[0]), peer[1])
        return Led(endpoint, "" if answer is None else format_address(answer.destination), at_socket=True)
    if answer is not None and (format_address(answer.source), answer.source_port) != dialled:
        return Led(format_socket_address(answer.source, answer.source_port), format_address(answer.destination))
    translated = packet_path.translated(
        NUMBERS[connection.protocol],
        (parse_address(connection.source), connection.source_port),
        (parse_address(connection.address), connection.port),
    )
    if translated is None:
        return Led()
    return Led(format_socket_address(*translated.endpoint), format_address(translated.seen))


def led_before_it_ended(
    begun: Mapping[tuple[RawEnd, RawEnd], Answer], sockets: Mapping[int, RawEnd], connection: Connection, cookie: int
) -> Led:
    """Return where a connection was led that ended at once: neither its socket nor connection tracking tells any more.

    Args:
        begun: the flows that connection tracking took on meanwhile.
        sockets: endpoints of those that eBPF programs led to one, by cookie.
        connection: the one to look up.
        cookie: of the client's socket.
    """
    dialled, peer = (parse_address(connection.address), connection.port), sockets.get(cookie)
    answer = begun.get(((parse_address(connection.source), connection.source_port), peer or dialled))
    if peer is not None:
        return Led(format_socket_address(*peer), "" if answer is None else format_address(answer.destination), True)
    if answer is None or (answer.source, answer.source_port) == dialled:
        return Led()
    return Led(format_socket_address(answer.source, answer.source_port), format_address(answer.destination))


def _answer(table: Conntrack, connection: Connection, destination: End) -> Answer | None:
    source, address = parse_address(connection.source), parse_address(destination[0])
    return table.answer(
        family_of(address),
        NUMBERS[connection.protocol],
        (source, connection.source_port),
        (address, destination[1]),
    )
