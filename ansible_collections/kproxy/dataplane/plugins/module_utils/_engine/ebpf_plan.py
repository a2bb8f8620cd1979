# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A change of the eBPF backend as a value: map entries, settings, and the part that our nftables tables carry."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import Replan
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan


class EbpfPlan(NamedTuple):
    """A change that was worked out and not made.

    share: the nftables part, None if there is none. unattached: programs are to be put on their hooks. departures: UDP
    endpoints may have left. unpinned: clients may be pinned to endpoints that have left, or without need.
    """

    maps: MapPlan
    replan: Replan | None
    settings: layout.Settings | None
    share: Any
    unattached: bool
    departures: bool
    unpinned: bool

    @property
    def empty(self) -> bool:
        """Nothing would be written."""
        return (
            self.maps.empty
            and self.settings is None
            and not self.unattached
            and (self.share is None or self.share.empty)
        )

    @property
    def size(self) -> int:
        """Number of elements that would be written or removed."""
        return self.maps.size + (self.share.size if self.share is not None else 0)
