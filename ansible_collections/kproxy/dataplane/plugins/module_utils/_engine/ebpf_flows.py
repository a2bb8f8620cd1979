# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of the programs' own connection tracking."""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flow_lifetime
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flow_filter import keep_filter
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane

_FAMILIES = (4, 6)
#: The kernel makes room for new entries before the last place is taken: each processor keeps some at hand.
_CROWDED = 0.9
_FORGETTING = (
    "map %s holds %d of %d entries: connections from outside that have been idle longest are forgotten, which breaks "
    "them; let fewer clients from outside dial this node"
)


class Collected(NamedTuple):
    """How many entries of flows4 and flows6 were removed, and how many are left. crowded: why connections may break."""

    removed: int
    left: int
    crowded: str


def collect(plane: Dataplane) -> Collected:
    """Remove entries of connections that have ended or idled out, and what they have left in the filter."""
    removed = left = 0
    crowded = ""
    for family in _FAMILIES:
        opened = plane.maps["flows%d" % family]
        now, held = time.monotonic_ns(), opened.dump()
        gone = 0
        for connection in flow_lifetime.ended(held, now):
            # Since it was read, somebody may have come again from the same port, and have entries of the same keys.
            if all(opened.get(key) == held[key] for key in connection):
                opened.delete(connection)
                gone += len(connection)
        removed += gone
        left += len(held) - gone
        if len(held) - gone > opened.info.max_entries * _CROWDED:
            crowded = _FORGETTING % (opened.name, len(held) - gone, opened.info.max_entries)
    # A filter that is not cleared fills up, and no more.
    with contextlib.suppress(OSError):
        keep_filter(plane, left)
    return Collected(removed, left, crowded)
