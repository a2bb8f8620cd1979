# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Tells the rest of the world what the sync loop does: metrics, health, the journal, the log.

Runs on the loop's thread. What the serving thread reads (proxy_state) is replaced whole, never changed in place.
"""

from __future__ import annotations

import datetime
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import Facts, Outcome
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import KINDS, SourceState
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.happenings import Happenings
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.journal import Entry, Journal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.logfmt import fields
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.metrics import Metrics
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import NodeEligibility, ProxyState
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sync_loop import (
    AUDITS,
    EVENTS,
    Attempt,
    Identity,
    Pending,
)

LOG = logging.getLogger("kproxyd.sync")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Reporter:
    """The observer of the sync loop."""

    def __init__(
        self,
        metrics: Metrics,
        journal: Journal,
        sync_period: float,
        families: tuple[int, ...],
        tell: Happenings,
    ) -> None:
        """Take where to report."""
        self._tell = tell
        self._metrics = metrics
        self._journal = journal
        self._families = tuple(f"IPv{family}" for family in families)
        self._sync_period = sync_period
        self._seen_changes: dict[str, int] = {}
        self._pending_since: Mapping[str, float] = {}
        self._last_updated: Mapping[str, float] = {}
        self._node = NodeEligibility()
        self.sources: dict[str, SourceState] = {}
        self.generation = 0
        self.last_commit_at = 0.0
        self.last_error = ""
        self.foreign_repairs = 0
        self._refused_kinds: set[str] = set(KINDS)
        self.left_out: Mapping[str, str] = {}
        self.notes: Mapping[str, tuple[str, ...]] = {}
        self._conflicts: frozenset[str] = frozenset()
        self._unfinished = ""

    def proxy_state(self) -> ProxyState:
        """Return what /healthz and /livez depend on, as of now. Safe to call from any thread."""
        now = time.time()
        # What waits is timed by a clock that nobody sets.
        ahead = now - time.monotonic()
        since = {family: queued + ahead for family, queued in self._pending_since.items()}
        return ProxyState(now, self._sync_period, self._node, since, self._last_updated, self._families)

    def show_facts(self, facts: Facts) -> None:
        """Take the facts of the state in force."""
        if facts.node_eligible is not None:
            self._node = NodeEligibility(known=True, being_deleted=not facts.node_eligible)
        for service in facts.left_out.keys() - self.left_out.keys():
            LOG.error("Service %s is left out: the kernel refuses it: %s", service, facts.left_out[service])
            namespace, _slash, name = service.partition("/")
            self._tell.service_refused(namespace, name, facts.left_out[service])
        self.left_out = facts.left_out
        self._metrics.left_out.set(len(facts.left_out))
        self._show_notes(facts)
        for (policy, family), count in facts.no_local_endpoints.items():
            self._metrics.no_local_endpoints.labels(traffic_policy=policy, ip_family=f"IPv{family}").set(count)
        for family, count in facts.frontends.items():
            self._metrics.frontends.labels(ip_family=f"IPv{family}").set(count)

    def _show_notes(self, facts: Facts) -> None:
        for service, notes in facts.notes.items():
            for note in notes:
                if note not in self.notes.get(service, ()):
                    LOG.warning("Service %s: %s", service, note)
        self.notes = facts.notes
        self._metrics.noted.set(len(facts.notes))
        for conflict in facts.conflicts:
            if conflict not in self._conflicts:
                LOG.warning("%s", conflict)
        self._conflicts = frozenset(facts.conflicts)
        self._metrics.conflicts.set(len(facts.conflicts))

    def queued(self, pending: Pending) -> None:
        """Count arrivals and remember since when each family waits."""
        for kind, counter, gauge in (
            ("EndpointSlice", self._metrics.endpoint_changes, self._metrics.endpoint_changes_pending),
            ("Service", self._metrics.service_changes, self._metrics.service_changes_pending),
        ):
            count = pending.changes.get(kind, 0)
            counter.inc(max(0, count - self._seen_changes.get(kind, 0)))
            gauge.set(count)
        self._seen_changes = dict(pending.changes)
        self._pending_since = {f"IPv{family}": since for family, since in pending.families.items()}
        for family in self._pending_since:
            self._metrics.last_queued.labels(ip_family=family).set_to_current_time()

    def attempted(self, attempt: Attempt) -> None:
        """Report one commit, in every place that shows it."""
        self._measure(attempt)
        if attempt.outcome is None:
            self._failed(attempt)
        else:
            self._succeeded(attempt, attempt.outcome)

    def refused(self, refusal: Refusal) -> None:
        """Log an object that cannot be used."""
        LOG.warning("refused: %s; everything else goes on, its last good version stays in force", refusal)

    def refusals_changed(self, refusals: Mapping[Identity, str]) -> None:
        """Show how many objects are refused."""
        counts = Counter(kind for kind, _namespace, _name in refusals)
        for kind in {*counts, *self._refused_kinds}:
            self._metrics.refused_objects.labels(kind=kind).set(counts[kind])
        self._refused_kinds.update(counts)

    def source_changed(self, state: SourceState) -> None:
        """Log and count a connection that came or went."""
        previous = self.sources.get(state.kind)
        self.sources[state.kind] = state
        self._metrics.source_connected.labels(kind=state.kind).set(int(state.connected))
        if state.detail:
            self._metrics.source_failures.labels(kind=state.kind).inc()
        if previous is None or previous[1:] != state[1:]:
            level = logging.WARNING if state.detail else logging.INFO
            LOG.log(
                level,
                "source %s",
                fields(kind=state.kind, connected=state.connected, server=state.server, detail=state.detail),
            )

    def _measure(self, attempt: Attempt) -> None:
        kind = self._metrics.full_sync_seconds if attempt.full else self._metrics.partial_sync_seconds
        for family in self._families:
            self._metrics.sync_seconds.labels(ip_family=family).observe(attempt.seconds)
            kind.labels(ip_family=family).observe(attempt.seconds)
        if attempt.reason in AUDITS:
            self._metrics.audits.inc()

    def _failed(self, attempt: Attempt) -> None:
        failures = self._metrics.cleanup_failures if attempt.in_force else self._metrics.sync_failures
        for family in self._families:
            failures.labels(ip_family=family).inc()
        if attempt.error != self.last_error:
            # Nobody says of tables that somebody else has altered that they still are good.
            state = "the last good state is in force"
            if attempt.foreign:
                state = f"what others did is not repaired yet: {attempt.foreign[-1]}"
            if not attempt.in_force:
                self._tell.sync_failed(attempt.error, state)
            LOG.error("commit failed: %s%s", attempt.error, "" if attempt.in_force else f"; {state}")
        LOG.warning("%s", fields(action="failed", reason=attempt.reason, retry_in=f"{attempt.retry_in:.1f}s"))
        self.last_error = attempt.error
        self._record("failed", attempt, Outcome(self.generation, wrote=False))

    def _succeeded(self, attempt: Attempt, outcome: Outcome) -> None:
        now = time.time()
        self.generation = outcome.generation
        self.last_error = ""
        self._pending_since = {}
        self._last_updated = dict.fromkeys(self._families, now)
        self._seen_changes = {}
        self._metrics.generation.set(outcome.generation)
        self._metrics.endpoint_changes_pending.set(0)
        self._metrics.service_changes_pending.set(0)
        for family in self._families:
            self._metrics.last_sync.labels(ip_family=family).set(now)
        for received in attempt.pending.received:
            self._metrics.event_to_commit_seconds.observe(time.monotonic() - received)
        for family_number, text in attempt.pending.triggers:
            happened = parse_time(text)
            if happened is not None:
                seconds = max(0.0, now - happened)
                self._metrics.network_programming_seconds.labels(ip_family=f"IPv{family_number}").observe(seconds)
        for family_number, cleanup in outcome.flow_cleanups.items():
            self._metrics.flow_cleanup_seconds.labels(ip_family=f"IPv{family_number}").observe(cleanup.seconds)
            self._metrics.flows_deleted.labels(ip_family=f"IPv{family_number}").inc(cleanup.deleted)
        if outcome.unfinished and outcome.unfinished != self._unfinished:
            LOG.warning("stale UDP flows are left: %s; trying again", outcome.unfinished)
        self._unfinished = outcome.unfinished
        if attempt.repaired:
            self.foreign_repairs += 1
            self._metrics.foreign_repairs.inc()
            who = "; ".join(attempt.foreign) or "unnoticed until this audit"
            self._tell.tables_repaired(who)
            LOG.warning(
                "something else had altered our tables (%s); repaired %s",
                who,
                fields(generation=outcome.generation, elements=outcome.elements, ms=f"{attempt.seconds * 1000:.1f}"),
            )
            self._record("repair", attempt, outcome)
        elif outcome.wrote:
            self._record("sync" if attempt.reason == EVENTS else attempt.reason, attempt, outcome)
            LOG.info("commit %s", fields(**_summary(attempt, outcome)))
        else:
            LOG.debug("nothing to write %s", fields(**_summary(attempt, outcome)))
        if outcome.wrote:
            self.last_commit_at = now
            self._metrics.commit_elements.observe(outcome.elements)

    def _record(self, action: str, attempt: Attempt, outcome: Outcome) -> None:
        self._journal.append(
            Entry(
                time.time(),
                action,
                outcome.generation,
                attempt.seconds,
                outcome.elements,
                outcome.added,
                outcome.changed,
                outcome.removed,
                attempt.foreign if action == "repair" else tuple(attempt.pending.causes),
                attempt.pending.more_causes,
                attempt.error,
            )
        )


def parse_time(text: str) -> float | None:
    """Return seconds since the epoch of an RFC 3339 time, or None for something else."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    whole, fraction, zone = match.groups()
    try:
        moment = datetime.datetime.fromisoformat(whole + ("+00:00" if zone == "Z" else zone))
    except ValueError:
        return None
    return moment.timestamp() + float(fraction or 0)


def _summary(attempt: Attempt, outcome: Outcome) -> dict[str, Any]:
    causes = attempt.pending.causes[:3]
    more = len(attempt.pending.causes) - len(causes) + attempt.pending.more_causes
    return {
        "generation": outcome.generation,
        "reason": attempt.reason,
        "elements": outcome.elements,
        "added": outcome.added,
        "changed": outcome.changed,
        "removed": outcome.removed,
        "ms": f"{attempt.seconds * 1000:.2f}",
        "cause": ", ".join(causes) + (f" and {more} more" if more else ""),
    }
