# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The sync loop against an engine that only writes down what it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Delete, Upsert, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import sync_loop
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import CommitFailed, Facts, Outcome
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import (
    Deleted,
    Refused,
    Replaced,
    SourceState,
    Upserted,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sync_loop import (
    FOLLOW_UP,
    FOREIGN,
    PERIODIC,
    RETRY,
    START,
    Attempt,
    Identity,
    Pending,
    SyncLoop,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RecordingDataplane:
    """Fails as often as told, like an engine whose kernel refuses."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.changes: list[Change] = []
        self.failures = 0
        self.flows_left = 0

    def apply(self, changes: Sequence[Change]) -> None:
        self.changes += changes

    def sync(self) -> Outcome:
        return self._do("sync")

    def audit(self) -> Outcome:
        return self._do("audit")

    def facts(self) -> Facts:
        raise AssertionError("the loop has no use for facts")

    def _do(self, what: str) -> Outcome:
        self.calls.append(what)
        if self.failures:
            self.failures -= 1
            raise CommitFailed("the kernel said no")
        left = "the connection table is busy" if self.flows_left else ""
        self.flows_left = max(0, self.flows_left - 1)
        return Outcome(len(self.calls), wrote=True, elements=1, added=1, unfinished=left)


class Recorder:
    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.refusals: list[Refusal] = []
        self.refused_now = 0

    def queued(self, pending: Pending) -> None: ...

    def attempted(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    def refused(self, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def refusals_changed(self, refusals: Mapping[Identity, str]) -> None:
        self.refused_now = len(refusals)

    def source_changed(self, state: SourceState) -> None: ...


class Bench:
    def __init__(self, min_sync_period: float = 0.0) -> None:
        self.clock = Clock()
        self.dataplane = RecordingDataplane()
        self.recorder = Recorder()
        self.loop = SyncLoop(self.dataplane, self.recorder, min_sync_period, 300.0, clock=self.clock)

    @classmethod
    def started(cls, min_sync_period: float = 0.0) -> Bench:
        bench = cls(min_sync_period)
        bench.list_all(service("a"))
        assert bench.loop.step()
        return bench

    def list_all(self, *services: Service) -> None:
        self.loop.take(
            [
                Replaced("Service", services),
                Replaced("EndpointSlice", ()),
                Replaced("Node", ()),
                Replaced("ServiceCIDR", ()),
            ]
        )

    def reasons(self) -> list[str]:
        return [attempt.reason for attempt in self.recorder.attempts]


def service(name: str) -> Service:
    parsed = parse(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
        }
    )
    assert isinstance(parsed, Service)
    return parsed


def test_nothing_is_committed_before_every_first_list() -> None:
    bench = Bench()
    bench.loop.take([Replaced("Service", (service("a"),)), Replaced("Node", ()), Upserted(service("b"), 1.0)])
    assert bench.loop.deadline() is None
    assert not bench.loop.step()
    assert bench.loop.waiting_for == ("EndpointSlice", "ServiceCIDR")
    bench.loop.foreign_change()
    assert not bench.loop.step()
    bench.loop.take([Replaced("EndpointSlice", ()), Replaced("ServiceCIDR", ())])
    assert bench.loop.step()
    assert (bench.dataplane.calls, bench.reasons(), bench.loop.started) == (["audit"], [START], True)


def test_an_event_is_committed_at_once_and_idle_means_idle() -> None:
    bench = Bench.started()
    assert not bench.loop.step()
    bench.loop.take([Upserted(service("b"), bench.clock.now)])
    assert bench.loop.deadline() is not None
    assert bench.loop.step()
    assert not bench.loop.step()
    assert bench.dataplane.calls == ["audit", "sync"]


def test_events_that_gathered_go_in_one_commit() -> None:
    bench = Bench.started()
    bench.loop.take([Upserted(service("b"), 1.0), Upserted(service("c"), 2.0)])
    bench.loop.take([Deleted("Service", "shop", "a", 3.0)])
    assert bench.loop.step()
    assert bench.dataplane.calls == ["audit", "sync"]
    assert bench.recorder.attempts[-1].pending.causes == [
        "Service shop/b",
        "Service shop/c",
        "Service shop/a deleted",
    ]


def test_a_minimum_period_spaces_commits() -> None:
    bench = Bench.started(min_sync_period=1.0)
    bench.loop.take([Upserted(service("b"), 1.0)])
    assert not bench.loop.step()
    bench.clock.now += 1.0
    assert bench.loop.step()


def test_a_failed_commit_keeps_its_changes_and_the_next_is_a_full_one() -> None:
    bench = Bench.started()
    bench.dataplane.failures = 1
    bench.loop.take([Upserted(service("b"), 1.0)])
    assert bench.loop.step()
    assert bench.recorder.attempts[-1].error == "the kernel said no"
    assert bench.loop.failing == 1
    # The change that arrives before the retry travels with it.
    bench.loop.take([Upserted(service("c"), 2.0)])
    assert not bench.loop.step()
    deadline = bench.loop.deadline()
    assert deadline is not None
    bench.clock.now = deadline
    assert bench.loop.step()
    assert bench.dataplane.calls == ["audit", "sync", "audit"]
    last = bench.recorder.attempts[-1]
    assert (last.reason, last.full, last.error) == (RETRY, True, "")
    assert last.pending.causes == ["Service shop/b", "Service shop/c"]
    assert bench.loop.failing == 0


def test_what_waits_for_a_commit_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits may fail for a week, while objects change every second."""
    monkeypatch.setattr(sync_loop, "MAX_SAMPLES", 50)
    bench = Bench.started()
    bench.dataplane.failures = 1
    for number in range(1000):
        bench.loop.take([Upserted(endpoint_slice(number), 1.0)])
    bench.loop.step()
    pending = bench.recorder.attempts[-1].pending
    assert pending.changes == {"EndpointSlice": 1000}
    assert (len(pending.received), len(pending.triggers)) == (50, 50)
    assert len(pending.causes) + pending.more_causes == 1000


def endpoint_slice(number: int) -> EndpointSlice:
    parsed = parse(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"a-{number}",
                "namespace": "shop",
                "labels": {"kubernetes.io/service-name": "a"},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"},
            },
            "addressType": "IPv4",
            "endpoints": [],
            "ports": [],
        }
    )
    assert isinstance(parsed, EndpointSlice)
    return parsed


def test_retries_back_off_and_need_no_event() -> None:
    bench = Bench.started()
    bench.dataplane.failures = 12
    bench.loop.take([Upserted(service("b"), 1.0)])
    pauses = []
    for _attempt in range(12):
        deadline = bench.loop.deadline()
        assert deadline is not None
        bench.clock.now = max(deadline, bench.clock.now)
        assert bench.loop.step()
        pauses.append(bench.recorder.attempts[-1].retry_in)
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-1] == 30.0


def run_until(bench: Bench, now: float) -> None:
    """Do what falls due until then."""
    while (due := bench.loop.deadline()) is not None and due <= now:
        bench.clock.now = max(due, bench.clock.now)
        assert bench.loop.step()
    bench.clock.now = now


def test_a_foreign_change_does_not_wait_for_a_pause_that_failures_have_made_long() -> None:
    """As while a firewall reloads time and again: commits fail for it, and the last reload leaves no tables."""
    bench = Bench.started()
    bench.dataplane.failures = 1000
    for _reload in range(200):
        bench.loop.foreign_change("deleted table ip kproxy, by nft")
        run_until(bench, bench.clock.now + 0.1)
    failed = len(bench.recorder.attempts)
    assert bench.recorder.attempts[-1].foreign == ("deleted table ip kproxy, by nft",)
    assert 20 <= failed <= 45, "not seldom, and no more than twice a second"
    bench.dataplane.failures = 0
    bench.loop.foreign_change("deleted table ip kproxy, by nft")
    run_until(bench, bench.clock.now + 1.0)
    assert bench.loop.failing == 0
    last = bench.recorder.attempts[-1]
    assert (last.reason, last.foreign) == (FOREIGN, ("deleted table ip kproxy, by nft",))


def test_retries_stay_seldom_where_nobody_else_does_anything() -> None:
    bench = Bench.started()
    bench.dataplane.failures = 1000
    bench.loop.foreign_change("deleted table ip kproxy, by nft")
    run_until(bench, bench.clock.now + 600.0)
    assert len(bench.recorder.attempts) < 40


def test_a_failed_first_commit_is_not_in_step() -> None:
    bench = Bench()
    bench.dataplane.failures = 1
    bench.list_all(service("a"))
    assert bench.loop.step()
    assert not bench.loop.started
    deadline = bench.loop.deadline()
    assert deadline is not None
    bench.clock.now = deadline
    assert bench.loop.step()
    assert bench.loop.started


def test_a_foreign_change_is_audited_when_it_has_paused() -> None:
    bench = Bench.started()
    bench.loop.foreign_change()
    assert not bench.loop.step()
    bench.clock.now += 0.05
    assert bench.loop.step()
    assert bench.reasons()[-1] == FOREIGN
    assert not bench.loop.step()


def test_foreign_changes_without_a_pause_are_audited_all_the_same() -> None:
    bench = Bench.started()
    begin = bench.clock.now
    while not bench.loop.step():
        bench.loop.foreign_change()
        bench.clock.now += 0.04
    assert bench.clock.now - begin <= 0.6


def test_the_kernel_is_read_back_once_in_a_while() -> None:
    bench = Bench.started()
    bench.clock.now += 299.0
    assert not bench.loop.step()
    bench.clock.now += 1.0
    assert bench.loop.step()
    assert bench.reasons()[-1] == PERIODIC


def test_a_relist_deletes_what_is_gone_and_spares_what_is_refused() -> None:
    bench = Bench()
    bench.list_all(service("a"), service("b"), service("c"))
    bench.dataplane.changes.clear()
    refusal = Refusal("Service", "shop", "c", "spec.ports[0].port is missing")
    bench.loop.take([Replaced("Service", (service("a"),), (refusal,))])
    assert bench.dataplane.changes == [Delete("Service", "shop", "b"), Upsert(service("a"))]
    assert bench.loop.refusals == {("Service", "shop", "c"): "spec.ports[0].port is missing"}
    assert bench.loop.known("Service") == 2


@pytest.mark.parametrize(
    "cure",
    [
        pytest.param(Upserted(service("bad"), 1.0), id="corrected"),
        pytest.param(Deleted("Service", "shop", "bad", 1.0), id="deleted"),
        pytest.param(Replaced("Service", ()), id="not in the next list"),
    ],
)
def test_a_refusal_is_told_once_and_forgotten_when_cured(cure: Upserted | Deleted | Replaced) -> None:
    bench = Bench.started()
    refusal = Refusal("Service", "shop", "bad", "spec.ports[0].port is missing")
    bench.loop.take([Refused(refusal, 1.0), Refused(refusal, 2.0)])
    assert [str(one) for one in bench.recorder.refusals] == ["Service shop/bad: spec.ports[0].port is missing"]
    assert bench.recorder.refused_now == 1
    assert not bench.loop.step()
    bench.loop.take([cure])
    assert not bench.loop.refusals
    assert bench.recorder.refused_now == 0


def test_an_unknown_object_that_is_deleted_changes_nothing() -> None:
    bench = Bench.started()
    bench.loop.take([Deleted("Service", "shop", "never-seen", 1.0)])
    assert not bench.loop.step()


def test_verify_audits_at_once_but_never_before_the_first_lists() -> None:
    bench = Bench()
    assert bench.loop.audit_now() is None
    bench.list_all()
    attempt = bench.loop.audit_now()
    assert attempt is not None
    assert attempt.full
    assert bench.loop.started


def test_stale_flows_that_a_commit_left_are_tried_again_with_growing_pauses() -> None:
    bench = Bench()
    bench.dataplane.flows_left = 3
    bench.list_all(service("a"))
    assert bench.loop.step()
    for pause in (0.1, 0.2, 0.4):
        assert not bench.loop.step()
        assert bench.loop.deadline() == pytest.approx(bench.clock.now + pause)
        bench.clock.now += pause
        assert bench.loop.step()
    assert bench.reasons() == [START, FOLLOW_UP, FOLLOW_UP, FOLLOW_UP]
    assert bench.dataplane.calls == ["audit", "sync", "sync", "sync"]
    assert bench.loop.failing == 0
    assert bench.loop.deadline() == pytest.approx(1000.0 + 300.0)


def test_changes_take_stale_flows_along_at_their_own_time() -> None:
    bench = Bench.started(min_sync_period=5.0)
    bench.dataplane.flows_left = 1
    bench.clock.now += 5.0
    bench.loop.take([Upserted(service("b"), bench.clock.now)])
    assert bench.loop.step()
    bench.loop.take([Upserted(service("c"), bench.clock.now)])
    bench.clock.now += 1.0
    assert not bench.loop.step()
    bench.clock.now += 4.0
    assert bench.loop.step()
    assert bench.reasons() == [START, "events", "events"]
