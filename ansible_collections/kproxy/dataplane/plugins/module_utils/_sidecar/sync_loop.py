# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""When to commit: events in, syncs and audits out, at the right moment.

An event is committed at once when nothing is running; events that arrive during a commit gather and go together with
the next. Nothing is committed before every first list is complete, so that a restart never removes what it has not
heard of yet. Changes stay queued until a commit succeeded; after a failure the next commit is a full one that reads the
kernel back, retried with growing pauses and without waiting for an event, or when somebody else has altered our tables.
So are stale UDP flows that a commit left.

No threads, no files, no sockets: the caller waits until deadline() and calls step().
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import (
    ApiObject,
    Change,
    Delete,
    Upsert,
    kind_of,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import (
    CommitFailed,
    Dataplane,
    Outcome,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import (
    KINDS,
    Deleted,
    Event,
    Refused,
    Replaced,
    SourceState,
    Upserted,
)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 30.0
# A foreign tool often works in several transactions; look when it has paused, but never later than the second figure.
FOREIGN_QUIET_SECONDS = 0.05
FOREIGN_LIMIT_SECONDS = 0.5
# Names kept per pending commit for the journal and the log; the rest is counted.
MAX_CAUSES = 20
# Times kept per pending commit for the metrics. Commits may fail for days.
MAX_SAMPLES = 10_000

START = "start"
EVENTS = "events"
RETRY = "retry"
FOLLOW_UP = "stale flows"
FOREIGN = "foreign change"
PERIODIC = "periodic audit"
ASKED = "verify"
# Reasons to read back a kernel that should already be in step.
AUDITS = (FOREIGN, PERIODIC, ASKED)

Identity = tuple[str, str, str]


@dataclass
class Pending:
    """What waits for the next successful commit. Times are those of the loop's clock.

    changes: how many, by kind. families: 4 and 6 where a change of that family waits, with the time of the oldest one.
    received, triggers: when they arrived, and (family, RFC 3339 time) of the pod or Service changes behind the waiting
    slices; the first ones only, if there are very many. causes: the first objects by name; more_causes counts the rest.
    """

    changes: dict[str, int] = field(default_factory=dict)
    families: dict[int, float] = field(default_factory=dict)
    received: list[float] = field(default_factory=list)
    triggers: list[tuple[int, str]] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    more_causes: int = 0


class Attempt(NamedTuple):
    """One sync or audit that was tried: why, what it was to carry, and how it ended (error "" is success).

    foreign: what others had done to our tables since the last audit, as far as it is known. in_force: the commit was
    taken, and only removing what it left over failed.
    """

    reason: str
    full: bool
    pending: Pending
    seconds: float
    outcome: Outcome | None
    error: str
    retry_in: float = 0.0
    foreign: tuple[str, ...] = ()
    in_force: bool = False

    @property
    def repaired(self) -> bool:
        """Return whether the kernel was other than it had been left, and was put right."""
        outcome = self.outcome
        return self.reason in AUDITS and outcome is not None and outcome.wrote and not outcome.frontends


class Observer(Protocol):
    """Whoever wants to know: metrics, health, journal, log."""

    def queued(self, pending: Pending) -> None:
        """Changes arrived and wait."""

    def attempted(self, attempt: Attempt) -> None:
        """A commit was tried."""

    def refused(self, refusal: Refusal) -> None:
        """An object cannot be used."""

    def refusals_changed(self, refusals: Mapping[Identity, str]) -> None:
        """These objects are refused now, with the reason."""

    def source_changed(self, state: SourceState) -> None:
        """A list or watch began to work or failed."""


class SyncLoop:
    """The state between events and commits."""

    def __init__(
        self,
        dataplane: Dataplane,
        observer: Observer,
        min_sync_period: float = 0.0,
        audit_period: float = 300.0,
        families: tuple[int, ...] = (4, 6),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the engine, who listens, and the periods in seconds."""
        self._dataplane = dataplane
        self._observer = observer
        self._min_sync_period = min_sync_period
        self._audit_period = audit_period
        self._families = families
        self._clock = clock
        self._known: dict[str, set[tuple[str, str]]] = {kind: set() for kind in KINDS}
        self._unlisted = set(KINDS)
        self._started = False
        self._pending = Pending()
        self._dirty = False
        self._failures = 0
        self._retry_at = 0.0
        self._unfinished = 0
        self._follow_up_at = float("inf")
        self._last_attempt = float("-inf")
        self._last_seconds = 0.0
        self._audit_at = float("inf")
        self._foreign_since: float | None = None
        self._foreign_last = 0.0
        self._foreign: list[str] = []
        self.refusals: dict[Identity, str] = {}

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Return the kinds whose first list has not arrived."""
        return tuple(kind for kind in KINDS if kind in self._unlisted)

    @property
    def started(self) -> bool:
        """Return whether the first commit succeeded."""
        return self._started

    @property
    def failing(self) -> int:
        """Return how many attempts in a row have failed."""
        return self._failures

    def known(self, kind: str) -> int:
        """Return how many objects of a kind there are."""
        return len(self._known[kind])

    def take(self, events: Iterable[Event]) -> None:
        """Queue events; step() commits them."""
        changes: list[Change] = []
        refused = dict(self.refusals)
        for event in events:
            if isinstance(event, Upserted):
                self._upsert(event.obj, event.received, changes)
            elif isinstance(event, Deleted):
                self._delete((event.kind, event.namespace, event.name), event.received, changes)
            elif isinstance(event, Replaced):
                self._replace(event, changes)
            elif isinstance(event, Refused):
                self._refuse(event.refusal)
            else:
                self._observer.source_changed(event)
        if self.refusals != refused:
            self._observer.refusals_changed(self.refusals)
        if changes:
            self._dirty = True
            self._dataplane.apply(changes)
            self._observer.queued(self._pending)

    def foreign_change(self, what: str = "") -> None:
        """Note that something else changed the ruleset; an audit follows shortly. what: who did what, for people."""
        now = self._clock()
        if what and what not in self._foreign:
            self._foreign = (self._foreign + [what])[-MAX_CAUSES:]
        if self._foreign_since is None:
            self._foreign_since = now
        self._foreign_last = now

    def deadline(self) -> float | None:
        """Return the clock time at which step() has something to do; None is "only after an event"."""
        if self._unlisted:
            return None
        if self._failures:
            if self._foreign_since is None:
                return self._retry_at
            # What others do may be what made it fail, and is not to wait for a pause that has grown long.
            rest = max(FOREIGN_LIMIT_SECONDS, self._last_seconds)
            return min(self._retry_at, max(self._foreign_due(), self._last_attempt + rest))
        times = [self._audit_at] if self._started else [float("-inf")]
        times.append(self._last_attempt + self._min_sync_period if self._dirty else self._follow_up_at)
        if self._foreign_since is not None:
            times.append(self._foreign_due())
        return min(times)

    def step(self) -> bool:
        """Run what is due; returns whether a commit was tried."""
        due = self.deadline()
        now = self._clock()
        if due is None or now < due:
            return False
        if self._failures:
            self._attempt(FOREIGN if self._foreign else RETRY, full=True)
        elif not self._started:
            self._attempt(START, full=True)
        elif self._foreign_since is not None and now >= self._foreign_due():
            self._attempt(FOREIGN, full=True)
        elif now >= self._audit_at:
            self._attempt(PERIODIC, full=True)
        else:
            self._attempt(EVENTS if self._dirty else FOLLOW_UP, full=False)
        return True

    def audit_now(self) -> Attempt | None:
        """Audit because somebody asks, and return how it went; None before the first lists are complete."""
        return None if self._unlisted else self._attempt(ASKED, full=True)

    def _foreign_due(self) -> float:
        since = self._foreign_since if self._foreign_since is not None else 0.0
        return min(self._foreign_last + FOREIGN_QUIET_SECONDS, since + FOREIGN_LIMIT_SECONDS)

    def _attempt(self, reason: str, full: bool) -> Attempt:
        begin = self._clock()
        try:
            outcome = self._dataplane.audit() if full else self._dataplane.sync()
        except CommitFailed as error:
            end = self._clock()
            self._failures += 1
            pause = _pause(self._failures)
            self._retry_at = end + pause
            self._last_attempt, self._last_seconds = end, end - begin
            self._foreign_since = None
            attempt = Attempt(
                reason,
                full,
                self._pending,
                end - begin,
                None,
                str(error),
                pause,
                foreign=tuple(self._foreign),
                in_force=error.in_force,
            )
            self._observer.attempted(attempt)
            return attempt
        end = self._clock()
        pending, self._pending = self._pending, Pending()
        attempt = Attempt(reason, full, pending, end - begin, outcome, "", foreign=tuple(self._foreign))
        self._started = True
        self._dirty = False
        self._failures = 0
        self._last_attempt = end
        self._unfinished = self._unfinished + 1 if outcome.unfinished else 0
        self._follow_up_at = end + _pause(self._unfinished) if self._unfinished else float("inf")
        if full:
            self._foreign_since = None
            self._foreign = []
            self._audit_at = end + self._audit_period
        self._observer.attempted(attempt)
        return attempt

    def _upsert(self, obj: ApiObject, received: float, changes: list[Change]) -> None:
        kind = kind_of(obj)
        namespace = getattr(obj, "namespace", "")
        self._known[kind].add((namespace, obj.name))
        self.refusals.pop((kind, namespace, obj.name), None)
        changes.append(Upsert(obj))
        families = (obj.family,) if isinstance(obj, EndpointSlice) and obj.family else self._families
        self._note(kind, families, received, f"{kind} {_path(namespace, obj.name)}")
        triggers = self._pending.triggers
        if isinstance(obj, EndpointSlice) and obj.trigger_time and self._started and len(triggers) < MAX_SAMPLES:
            triggers.append((obj.family, obj.trigger_time))

    def _delete(self, identity: Identity, received: float, changes: list[Change]) -> None:
        kind, namespace, name = identity
        self.refusals.pop(identity, None)
        if (namespace, name) not in self._known.get(kind, ()):
            return
        self._known[kind].discard((namespace, name))
        changes.append(Delete(kind, namespace, name))
        self._note(kind, self._families, received, f"{kind} {_path(namespace, name)} deleted")

    def _replace(self, event: Replaced, changes: list[Change]) -> None:
        now = self._clock()
        kept = {(refusal.namespace, refusal.name) for refusal in event.refusals}
        present = {(getattr(obj, "namespace", ""), obj.name) for obj in event.objects} | kept
        for namespace, name in self._known[event.kind] - present:
            self._delete((event.kind, namespace, name), now, changes)
        for identity in [one for one in self.refusals if one[0] == event.kind and one[1:] not in kept]:
            del self.refusals[identity]
        for obj in event.objects:
            self._upsert(obj, now, changes)
        for refusal in event.refusals:
            self._refuse(refusal)
        self._unlisted.discard(event.kind)

    def _refuse(self, refusal: Refusal) -> None:
        identity = (refusal.kind, refusal.namespace, refusal.name)
        if self.refusals.get(identity) != refusal.reason:
            self.refusals[identity] = refusal.reason
            self._observer.refused(refusal)

    def _note(self, kind: str, families: tuple[int, ...], received: float, cause: str) -> None:
        self._pending.changes[kind] = self._pending.changes.get(kind, 0) + 1
        for family in families:
            self._pending.families.setdefault(family, received)
        if self._started and len(self._pending.received) < MAX_SAMPLES:
            self._pending.received.append(received)
        self._note_cause(cause)

    def _note_cause(self, cause: str) -> None:
        if len(self._pending.causes) < MAX_CAUSES:
            self._pending.causes.append(cause)
        else:
            self._pending.more_causes += 1


def _pause(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row."""
    return min(FIRST_RETRY_SECONDS * (1 << min(failures - 1, 16)), LAST_RETRY_SECONDS)


def _path(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name
