# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The part of the service table that the eBPF path does not carry, as a table for the nftables backend."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.entries import carried
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import Frontend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.store import ServiceKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable, TableDelta


class NftablesShare(ServiceTable):
    """A view of another table: only rows that eBPF does not carry, and no service ranges.

    The programs drop what goes to unused service addresses; nftables knows only its own share of the used ones, and of
    their ports: it would refuse what the node sends to others, which the programs may have to drop.
    """

    def __init__(self, whole: ServiceTable) -> None:
        self._whole = whole
        self.config = whole.config
        self.store = whole.store
        self.built = whole.built
        self.view = whole.view
        self.frontends = {key: row for key, row in whole.frontends.items() if not carried(row)}
        self.rules = {family: rule._replace(service_cidrs=(), guarded=False) for family, rule in whole.rules.items()}

    def frontends_of(self, service: ServiceKey) -> list[Frontend]:
        """Return the rows of one Service that nftables carries."""
        return [row for row in self._whole.frontends_of(service) if not carried(row)]


def share_of(delta: TableDelta, whole: ServiceTable) -> TableDelta:
    """Return what of a change concerns nftables."""
    before = {
        key: None if row is None or carried(row) else row
        for key, row in delta.before.items()
        if not _carried_both(row, whole.frontends.get(key))
    }
    return delta._replace(before=before)


def _carried_both(before: Frontend | None, after: Frontend | None) -> bool:
    return all(row is None or carried(row) for row in (before, after))
