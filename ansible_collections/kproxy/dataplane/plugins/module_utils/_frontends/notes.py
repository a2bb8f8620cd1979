# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What of the objects in use is not served, and why: for people who wonder where an address or endpoint is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.build import BuiltPort
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import EXTERNAL_IPS_GATE
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.store import ServiceKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES


def all_notes(table: ServiceTable, most_endpoints: int = sys.maxsize) -> list[str]:
    """Return the notes of this node and of all Services in order, each naming its object."""
    return node_notes(table) + [
        "Service %s/%s: %s" % (*key, note)
        for key in sorted(table.built)
        for note in notes_of(table, key, most_endpoints)
    ]


def node_notes(table: ServiceTable) -> list[str]:
    """Return what of this node's own object is left out, one sentence each."""
    node = table.store.node
    return [] if node is None else ["Node %s: %s" % (node.name, note) for note in node.notes]


def notes_of(table: ServiceTable, key: ServiceKey, most_endpoints: int = sys.maxsize) -> Iterator[str]:
    """Yield what of a Service and its slices is not served, one sentence each."""
    service = table.store.services.get(key)
    if service is not None:
        yield from service.notes
        if service.external_ips and not table.config.serves_external_ips:
            addresses = ", ".join(map(format_address, service.external_ips))
            yield "externalIPs: the feature gate %s is off; %s are left out" % (EXTERNAL_IPS_GATE, addresses)
    for piece in table.store.slices_of(key):
        for note in piece.notes:
            yield "EndpointSlice %s: %s" % (piece.name, note)
    for port in table.built[key].ports if key in table.built else ():
        if not port.sets.exists:
            yield from _unmatched(table.store.slices_of(key), port)
        count = max(len(port.sets.cluster), len(port.sets.local))
        if count > most_endpoints:
            yield "port %s has %d endpoints in IPv%d, of which the first %d by address are served" % (
                port.name.port or "(unnamed)", count, port.family, most_endpoints,
            )  # fmt: skip


def _unmatched(slices: Sequence[EndpointSlice], port: BuiltPort) -> Iterator[str]:
    """Yield a sentence if slices list endpoints, and none of them for a port of this name and protocol."""
    offered = {
        (one.name, one.protocol)
        for piece in slices
        if piece.family == port.family and piece.endpoints
        for one in piece.ports
    }
    listed = any(piece.family == port.family and piece.endpoints for piece in slices)
    if listed and (port.name.port, port.name.protocol) not in offered:
        held = ", ".join(_port(*one) for one in sorted(offered)) or "none with a number"
        yield "port %s has no endpoint in IPv%d: no EndpointSlice has this name and protocol; they have %s" % (
            _port(port.name.port, port.name.protocol), port.family, held,
        )  # fmt: skip


def _port(name: str, protocol: int) -> str:
    return "%s/%s" % (name or "(unnamed)", NAMES[protocol])
