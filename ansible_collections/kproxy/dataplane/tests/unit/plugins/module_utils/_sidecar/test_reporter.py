"""What a sync and its failures leave in the metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import FlowCleanup
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import CommitFailed, Facts, Outcome
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import KINDS, Replaced
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.happenings import Happening, Happenings
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.journal import Journal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.metrics import Metrics
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reporter import Reporter
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sync_loop import Pending, SyncLoop

#: kube-proxy's names in nftables mode that carry nothing but a family, with a value for both from the start.
PER_FAMILY = (
    "sync_proxy_rules_nftables_sync_failures_total",
    "sync_proxy_rules_nftables_cleanup_failures_total",
    "conntrack_reconciler_deleted_entries_total",
    "conntrack_reconciler_sync_duration_seconds_count",
)
#: The same, which have a value once a sync was tried.
AFTER_A_SYNC = (
    "sync_proxy_rules_duration_seconds_count",
    "sync_full_proxy_rules_duration_seconds_count",
    "sync_proxy_rules_last_timestamp_seconds",
)


class Ending:
    """An engine whose next syncs end as told."""

    def __init__(self, *endings: Outcome | CommitFailed) -> None:
        self.endings = list(endings)

    def apply(self, changes: Sequence[Change]) -> None: ...

    def sync(self) -> Outcome:
        ending = self.endings.pop(0)
        if isinstance(ending, CommitFailed):
            raise ending
        return ending

    def audit(self) -> Outcome:
        return self.sync()

    def facts(self) -> Facts:
        raise AssertionError("the loop has no use for facts")


class Remembered:
    """A recorder that only remembers."""

    def __init__(self) -> None:
        self.happenings: list[Happening] = []

    def record(self, happening: Happening) -> None:
        self.happenings.append(happening)


class Bench:
    def __init__(self, folder: Path, *endings: Outcome | CommitFailed) -> None:
        self.metrics = Metrics()
        self.recorder = Remembered()
        self.reporter = Reporter(self.metrics, Journal(folder, 1 << 20), 30.0, (4, 6), Happenings("n1", self.recorder))
        self.dataplane = Ending(*endings)
        self.loop = SyncLoop(self.dataplane, self.reporter)
        self.loop.take([Replaced(kind, ()) for kind in KINDS])
        for _ending in endings:
            self.loop.audit_now()

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"kubeproxy_{name}", labels)


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_what_has_a_value_before_and_after_the_first_sync(tmp_path: Path, family: str) -> None:
    fresh = Bench(tmp_path)
    assert {name: fresh.value(name, ip_family=family) for name in PER_FAMILY} == dict.fromkeys(PER_FAMILY, 0)
    synced = Bench(tmp_path, Outcome(1, wrote=True))
    assert [name for name in AFTER_A_SYNC if not synced.value(name, ip_family=family)] == []


def test_deleted_flows_count_for_their_family(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path,
        Outcome(1, wrote=True, flow_cleanups={4: FlowCleanup(3, 0.25), 6: FlowCleanup(0, 0.5)}),
        Outcome(2, wrote=True, flow_cleanups={4: FlowCleanup(2, 0.25)}),
    )
    assert bench.value("conntrack_reconciler_deleted_entries_total", ip_family="IPv4") == 5
    assert bench.value("conntrack_reconciler_deleted_entries_total", ip_family="IPv6") == 0
    assert bench.value("conntrack_reconciler_sync_duration_seconds_sum", ip_family="IPv4") == 0.5
    assert bench.value("conntrack_reconciler_sync_duration_seconds_count", ip_family="IPv6") == 1


@pytest.mark.parametrize(
    ("in_force", "syncs", "cleanups"),
    [
        pytest.param(False, 1, 0, id="a commit that the kernel refused"),
        pytest.param(True, 0, 1, id="a commit that left something behind"),
    ],
)
def test_failures_are_told_apart(tmp_path: Path, in_force: bool, syncs: int, cleanups: int) -> None:
    bench = Bench(tmp_path, CommitFailed("busy", in_force))
    for family in ("IPv4", "IPv6"):
        assert bench.value("sync_proxy_rules_nftables_sync_failures_total", ip_family=family) == syncs
        assert bench.value("sync_proxy_rules_nftables_cleanup_failures_total", ip_family=family) == cleanups


def test_what_is_not_served_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path)
    facts = Facts((), {}, {}, {}, {}, None, notes={"shop/web": ("a part",)}, conflicts=("a loses 1.2.3.4 to b",))
    for shown in (facts, facts, facts._replace(notes={"shop/web": ("a part", "another")})):
        bench.reporter.show_facts(shown)
    assert [record.getMessage() for record in caplog.records] == [
        "Service shop/web: a part",
        "a loses 1.2.3.4 to b",
        "Service shop/web: another",
    ]
    assert bench.metrics.registry.get_sample_value("kproxy_noted_services") == 1
    assert bench.metrics.registry.get_sample_value("kproxy_conflicting_frontends") == 1
    bench.reporter.show_facts(facts._replace(notes={}, conflicts=()))
    assert bench.metrics.registry.get_sample_value("kproxy_noted_services") == 0
    assert bench.metrics.registry.get_sample_value("kproxy_conflicting_frontends") == 0


def test_what_goes_wrong_here_happens_to_the_node_or_the_service(tmp_path: Path) -> None:
    bench = Bench(tmp_path, CommitFailed("busy"), CommitFailed("busy", in_force=True))
    facts = Facts((), {}, {}, {}, {}, None, left_out={"shop/web": "EINVAL"})
    for _again in range(2):
        bench.reporter.show_facts(facts)
    assert [(one.kind, one.namespace, one.name, one.reason) for one in bench.recorder.happenings] == [
        ("Node", "", "n1", "FailedToSync"),
        ("Service", "shop", "web", "FailedToProgramService"),
    ]


@pytest.mark.parametrize(
    ("others_did", "said"),
    [
        ([], "the last good state is in force"),
        (["a, by x", "b, by y"], "what others did is not repaired yet: b, by y"),
    ],
)
def test_what_is_in_force_after_a_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, others_did: list[str], said: str
) -> None:
    bench = Bench(tmp_path, Outcome(1, wrote=True))
    for what in others_did:
        bench.loop.foreign_change(what)
    bench.dataplane.endings = [CommitFailed("the set is gone", in_force=False)]
    bench.loop.audit_now()
    assert f"commit failed: the set is gone; {said}" in caplog.messages
    assert [one.note for one in bench.recorder.happenings if one.reason == "FailedToSync"] == [
        f"the set is gone; {said}"
    ]


@pytest.mark.parametrize(
    ("waits", "set_by", "healthy"),
    [(0.0, 30 * 86400.0, True), (90.0, -86400.0, False), (0.0, 0.0, True), (90.0, 0.0, False)],
)
def test_lateness_does_not_follow_a_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: float, set_by: float, healthy: bool
) -> None:
    reporter = Bench(tmp_path).reporter
    reporter.queued(Pending(families={4: time.monotonic() - waits}))
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + set_by)
    assert reporter.proxy_state().healthy is healthy
