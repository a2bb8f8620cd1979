# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Takes changes of objects and keeps a dataplane in step with them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import (
    Backend,
    BackendPlan,
    CommitError,
    FrontendState,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.udp_flows import delete_stale_flows
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.store import ServiceKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import (
    Conflict,
    ServiceTable,
    TableDelta,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change

#: Changes that are kept as they came. More than the first lists of any cluster bring, and some tens of megabytes.
MOST_WAITING = 100_000


class FlowCleanup(NamedTuple):
    """How stale UDP flows of one family were deleted: how many, and the time it took."""

    deleted: int
    seconds: float


class SyncResult(NamedTuple):
    """What one sync did.

    generation: of the last commit that wrote something. size: elements written. full: the kernel was read back first.
    wrote: something was written. rows: frontends that changed. flow_cleanups: per family, 4 or 6, whose stale UDP flows
    were looked for. plan_seconds, commit_seconds: time taken. left_out: Services that the kernel refuses, with the
    reason.
    """

    generation: int
    size: int
    full: bool
    wrote: bool
    rows: Mapping[FrontendKey, Any]
    services: frozenset[ServiceKey]
    flow_cleanups: Mapping[int, FlowCleanup]
    plan_seconds: float
    commit_seconds: float
    left_out: Mapping[ServiceKey, str]


class Preview(NamedTuple):
    """What a sync would do: frontends in the kernel before and after it, and whether anything would be written."""

    changes: bool
    size: int
    before: Mapping[FrontendKey, FrontendState]
    after: Mapping[FrontendKey, FrontendState]


class Engine:
    """One node's service proxy without its sources: objects in, kernel state out.

    Changes are kept until a sync has committed them; after a commit that failed the next sync reads the kernel back
    and writes what differs. Not thread-safe.
    """

    def __init__(self, config: ProxyConfig, backend: Backend) -> None:
        self.config = config
        self.backend = backend
        self.table = ServiceTable(config)
        self.generation = 0
        self.left_out: dict[ServiceKey, str] = {}
        self._pending: list[Change] = []
        self._in_step = False
        self._udp_families: set[int] = set()
        #: Why stale UDP flows are still there; empty when none is left to delete.
        self.flow_failure = ""

    def apply(self, changes: Iterable[Change]) -> None:
        """Take changes for the next sync. Never touches the kernel.

        While no sync comes about, the table takes them, so that what is kept does not grow with time. The next sync
        reads the kernel back, and needs no list of what has changed.
        """
        self._pending.extend(changes)
        if len(self._pending) > MOST_WAITING and not self._in_step:
            self._take_pending()

    @property
    def pending(self) -> bool:
        """There are changes to sync, or the last sync has not succeeded in everything."""
        return bool(self._pending or self._udp_families) or not self._in_step

    @property
    def conflicts(self) -> Sequence[Conflict]:
        """Frontends that several Services claim."""
        return self.table.conflicts

    def sync(self) -> SyncResult:
        """Bring the kernel in step with all changes taken so far. Raises CommitError; what was in force stays."""
        return self._sync(read_back=not self._in_step)

    def audit(self) -> SyncResult:
        """Read the kernel back, unless nothing can have altered it, and repair what is wrong. Raises CommitError."""
        return self._sync(read_back=not (self._in_step and self.backend.undisturbed()))

    def preview(self) -> Preview:
        """Return what an audit would do now, writing nothing. The next sync reads the kernel back again."""
        self._take_pending()
        self._in_step = False
        plan = self.backend.plan_all(self.table)
        before, after = self.backend.preview(plan)
        return Preview(not plan.empty, plan.size, before, after)

    def _sync(self, read_back: bool) -> SyncResult:
        started = time.monotonic()
        delta = self._take_pending()
        self._in_step = False
        plan = self.backend.plan_all(self.table) if read_back else self.backend.plan(self.table, delta)
        planned = time.monotonic()
        wrote, size = not plan.empty, plan.size
        try:
            self.backend.commit(plan)
        except CommitError as error:
            size = self._commit_without_culprit(error, read_back)
            wrote = True
        self._in_step = True
        if wrote:
            self.generation += 1
        committed = time.monotonic()
        return SyncResult(
            self.generation,
            size,
            read_back,
            wrote,
            delta.before,
            delta.services,
            self._delete_stale_flows(),
            planned - started,
            committed - planned,
            dict(self.left_out),
        )

    def _take_pending(self) -> TableDelta:
        delta = self.table.apply(self._pending)
        self._pending = []
        self._udp_families |= delta.udp_families
        for service in delta.services:
            if self.left_out.pop(service, None) is not None:
                self._in_step = False
        return delta

    def _commit_without_culprit(self, error: CommitError, read_back: bool) -> int:
        """Commit all but the Services whose elements the kernel refuses. Raises CommitError if that cannot be told.

        Nobody is blamed for a difference from books that somebody else made wrong: the kernel is read back first.
        """
        while error.another_way or (error.frontend is not None and error.frontend in self.table.frontends):
            if read_back and error.frontend is not None and not error.another_way:
                service = self.table.frontends[error.frontend].service_port[:2]
                self.left_out[service] = str(error)
                self.table.leave_out(service)
            read_back = True
            plan: BackendPlan = self.backend.plan_all(self.table)
            try:
                self.backend.commit(plan)
                return plan.size
            except CommitError as another:
                error = another
        raise error

    def _delete_stale_flows(self) -> dict[int, FlowCleanup]:
        """Delete UDP flows to endpoints that have gone: rules first, or the next packet brings the old flow back.

        A failure leaves them for the next sync, and has nothing to do with the tables: those are in step.
        """
        self.flow_failure = ""
        done: dict[int, FlowCleanup] = {}
        for family in sorted(self._udp_families):
            started = time.monotonic()
            try:
                deleted = delete_stale_flows(self.table, family)
            except KernelError as error:
                self.flow_failure = str(error)
                break
            self._udp_families.discard(family)
            done[family] = FlowCleanup(deleted, time.monotonic() - started)
        return done
