# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What of the objects in use is not served, and why: for people who wonder where an address or endpoint is."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.store import ServiceKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable


def all_notes(table: ServiceTable, most_endpoints: int = sys.maxsize) -> list[str]:
    """Return the notes of all Services in order, each naming its Service."""
    return [
        "Service %s/%s: %s" % (*key, note)
        for key in sorted(table.built)
        for note in notes_of(table, key, most_endpoints)
    ]


def notes_of(table: ServiceTable, key: ServiceKey, most_endpoints: int = sys.maxsize) -> Iterator[str]:
    """Yield what of a Service and its slices is not served, one sentence each."""
    service = table.store.services.get(key)
    if service is not None:
        yield from service.notes
    for piece in table.store.slices_of(key):
        for note in piece.notes:
            yield "EndpointSlice %s: %s" % (piece.name, note)
    for port in table.built[key].ports if key in table.built else ():
        count = max(len(port.sets.cluster), len(port.sets.local))
        if count > most_endpoints:
            yield "port %s has %d endpoints in IPv%d, of which the first %d by address are served" % (
                port.name.port or "(unnamed)", count, port.family, most_endpoints,
            )  # fmt: skip
