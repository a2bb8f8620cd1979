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


class Collected(NamedTuple):
    """How many entries of flows4 and flows6 were removed, and how many are left."""

    removed: int
    left: int


def collect(plane: Dataplane) -> Collected:
    """Remove entries of connections that have ended or idled out, and what they have left in the filter."""
    removed = left = 0
    for family in _FAMILIES:
        opened = plane.maps["flows%d" % family]
        now, held = time.monotonic_ns(), opened.dump()
        ended = flow_lifetime.ended(held, now)
        opened.delete(ended)
        removed += len(ended)
        left += len(held) - len(ended)
    # A filter that is not cleared fills up, and no more.
    with contextlib.suppress(OSError):
        keep_filter(plane, left)
    return Collected(removed, left)
