# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which endpoint a connection was led to, as connection tracking knows it: no endpoint has to cooperate."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import Wanted
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    family_of,
    format_socket_address,
    parse_address,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NUMBERS


class Connection(NamedTuple):
    """One connection as its client sees it."""

    protocol: str
    source: str
    source_port: int
    address: str
    port: int


def endpoint_of(connection: Connection) -> str:
    """Return the endpoint a connection was translated to, empty if it is not tracked or not translated.

    Raises KernelError.
    """
    source, destination = parse_address(connection.source), parse_address(connection.address)
    wanted = Wanted(destinations=frozenset({(destination, connection.port)}))
    with Conntrack() as table:
        for flow in table.flows(family_of(destination), wanted, NUMBERS[connection.protocol]):
            if (flow.source, flow.source_port) == (source, connection.source_port):
                answering = (flow.reply_source, flow.reply_source_port)
                return "" if answering == (destination, connection.port) else format_socket_address(*answering)
    return ""
