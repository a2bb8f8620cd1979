# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where eBPF programs led a connection, by their own tables.

Those of the packet path translate before connection tracking looks, so that it knows such a flow, if at all, as one to
the endpoint. Those of sockets keep what a socket was led to until it is closed by its owner.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flows, layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flows import End, Flow
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane


class Translated(NamedTuple):
    """A connection that the programs lead to an endpoint, which sees this address."""

    endpoint: End
    seen: bytes


class PacketPath:
    """The flow tables that are pinned in a directory; empty if there are none. Only looks."""

    def __init__(self, directory: str) -> None:
        """Open them. Raises OSError, LayoutMismatch."""
        self._plane: Dataplane | None = None
        if os.path.isdir(directory):
            self._plane = Dataplane(directory)
            self._plane.adopt()

    def translated(self, protocol: int, source: End, dialled: End) -> Translated | None:
        """Return where a connection is led, None if the programs leave it alone. Raises OSError."""
        first = self._flow(protocol, source, dialled, flows.INGRESS)
        if first is None:
            # What a socket of the node sends meets one hook alone.
            only = self._flow(protocol, source, dialled, flows.EGRESS)
            return None if only is None else _whole(only)
        endpoint = (first.to_destination, first.to_destination_port)
        second = self._flow(protocol, (first.to_source, first.to_source_port), endpoint, flows.EGRESS)
        return _whole(first if second is None or second.flags & flows.DIRECT else second)

    def led_sockets(self, family: int) -> dict[int, End]:
        """Return the endpoint of every TCP socket that was led to one, by the socket's cookie. Raises OSError."""
        maps = {} if self._plane is None else self._plane.maps.maps
        found: dict[int, End] = {}
        if f"sockets{family}" in maps:
            for key, value in maps[f"sockets{family}"].dump().items():
                entry = layout.unpack_socket(key, value)
                found[entry.cookie] = (entry.endpoint_ip, entry.endpoint_port)
        if f"connected{family}" in maps:
            for place in map(layout.Place.unpack, maps[f"connected{family}"].dump().values()):
                if place.endpoint_port:
                    found[place.cookie] = (place.endpoint_ip, place.endpoint_port)
        return found

    def _flow(self, protocol: int, source: End, destination: End, hook: int) -> Flow | None:
        name = "flows4" if len(source[0]) == 4 else "flows6"
        if self._plane is None or name not in self._plane.maps.maps:
            return None
        key = flows.pack_key(source, destination, protocol, hook)
        value = self._plane.maps[name].get(key)
        return None if value is None else flows.unpack_flow(key, value)


def _whole(flow: Flow) -> Translated:
    return Translated((flow.to_destination, flow.to_destination_port), flow.to_source)
