"""The engine with a dataplane that can be told to fail: what is kept, what is tried again, what is left out."""

from __future__ import annotations

import gc
import socket
from collections.abc import Mapping

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import engine as engine_module
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError, FrontendState
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine, SyncResult
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import Frontend, FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable, TableDelta
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete, Upsert
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)

UDP_PORT = [{"name": "dns", "port": 53, "protocol": "UDP"}]


class Rows:
    """A plan: the rows that should be in force."""

    def __init__(self, rows: dict[FrontendKey, Frontend], held: dict[FrontendKey, Frontend]) -> None:
        self.rows = rows
        self.empty = rows == held
        self.size = len({key for key in {*rows, *held} if rows.get(key) != held.get(key)})


class Dataplane:
    """A dataplane whose kernel is a dict."""

    name = "fake"

    def __init__(self) -> None:
        self.kernel: dict[FrontendKey, Frontend] = {}
        self.failures: list[CommitError] = []
        self.refused_service = ""
        self.quiet = False
        self.log: list[str] = []

    def plan_all(self, table: ServiceTable) -> Rows:
        self.log.append("plan_all")
        return Rows(dict(table.frontends), self.kernel)

    def plan(self, table: ServiceTable, delta: TableDelta) -> Rows:
        self.log.append("plan")
        rows = dict(self.kernel)
        for key in delta.before:
            rows.pop(key, None)
            if key in table.frontends:
                rows[key] = table.frontends[key]
        return Rows(rows, self.kernel)

    def commit(self, plan: Rows) -> None:
        self.log.append("commit")
        if self.failures:
            raise self.failures.pop(0)
        for key, row in plan.rows.items():
            if row.service_port.name == self.refused_service:
                raise CommitError("the kernel does not like it", key)
        self.kernel = dict(plan.rows)

    def preview(self, plan: Rows) -> tuple[Mapping[FrontendKey, FrontendState], Mapping[FrontendKey, FrontendState]]:
        return {}, dict.fromkeys(plan.rows, FrontendState("", "", (), ()))

    def undisturbed(self) -> bool:
        return self.quiet

    def exists(self) -> bool:
        return bool(self.kernel)

    def remove(self) -> bool:
        return False

    def close(self) -> None:
        pass


def deleted(result: SyncResult) -> dict[int, int]:
    return {family: cleanup.deleted for family, cleanup in result.flow_cleanups.items()}


@pytest.fixture
def dataplane() -> Dataplane:
    return Dataplane()


@pytest.fixture
def engine(dataplane: Dataplane, monkeypatch: pytest.MonkeyPatch) -> Engine:
    def delete(_table: ServiceTable, family: int) -> int:
        dataplane.log.append(f"flows of IPv{family}")
        return 1

    monkeypatch.setattr(engine_module, "delete_stale_flows", delete)
    return Engine(config(), dataplane)


def test_changes_that_wait_for_long_are_not_all_kept(
    engine: Engine, dataplane: Dataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that an API server never gives keeps the first commit waiting, while other kinds change for days."""
    monkeypatch.setattr(engine_module, "MOST_WAITING", 10)
    made = objects_alive(Upsert)
    for number in range(1000):
        engine.apply(upserts(service(), endpoints("10.244.1.%d" % (number % 200 + 1))))
        engine.apply([Delete("Service", "shop", "gone-%d" % number)])
    assert objects_alive(Upsert) <= made + 15
    assert dataplane.log == []
    engine.apply(upserts(endpoints("10.244.1.250")))
    assert engine.sync().full
    (row,) = dataplane.kernel.values()
    assert [socket.inet_ntoa(endpoint.ip) for endpoint in row.cluster_endpoints] == ["10.244.1.250"]


def objects_alive(kind: type) -> int:
    gc.collect()
    return sum(isinstance(one, kind) for one in gc.get_objects())


def test_the_first_sync_reads_the_kernel_and_later_ones_do_not(engine: Engine, dataplane: Dataplane) -> None:
    engine.apply(upserts(service()))
    assert engine.sync().full
    engine.apply(upserts(endpoints("10.244.1.5")))
    assert not engine.sync().full
    assert dataplane.log == ["plan_all", "commit", "plan", "commit"]


def test_an_audit_reads_the_kernel_only_if_something_can_have_altered_it(engine: Engine, dataplane: Dataplane) -> None:
    engine.apply(upserts(service()))
    engine.sync()
    dataplane.quiet = True
    assert not engine.audit().full
    dataplane.quiet = False
    assert engine.audit().full


def test_an_idle_sync_writes_nothing_and_keeps_its_generation(engine: Engine) -> None:
    engine.apply(upserts(service()))
    first = engine.sync()
    second = engine.sync()
    assert (first.wrote, second.wrote, second.generation) == (True, False, first.generation)


def test_a_failed_commit_keeps_its_changes_and_the_next_sync_is_a_full_one(
    engine: Engine, dataplane: Dataplane
) -> None:
    engine.apply(upserts(service()))
    engine.sync()
    dataplane.failures = [CommitError("busy")]
    engine.apply(upserts(service("late", clusterIP="10.96.0.6")))
    with pytest.raises(CommitError):
        engine.sync()
    assert len(dataplane.kernel) == 1, "the last good state is in force"
    assert engine.pending
    engine.apply(upserts(service("later", clusterIP="10.96.0.7")))
    assert engine.sync().full
    assert len(dataplane.kernel) == 3
    assert not engine.pending


def test_the_service_that_the_kernel_refuses_is_left_out_alone_and_named(engine: Engine, dataplane: Dataplane) -> None:
    dataplane.refused_service = "odd"
    engine.apply(upserts(service(), service("odd", clusterIP="10.96.0.6")))
    result = engine.sync()
    assert result.left_out == {("shop", "odd"): "the kernel does not like it"}
    assert len(dataplane.kernel) == 1
    engine.apply(upserts(service("other", clusterIP="10.96.0.7")))
    assert len(engine.sync().left_out) == 1
    dataplane.refused_service = ""
    engine.apply(upserts(service("odd", clusterIP="10.96.0.8")))
    assert engine.sync().left_out == {}
    assert len(dataplane.kernel) == 3


def test_a_refusal_that_names_nobody_fails_the_sync(engine: Engine, dataplane: Dataplane) -> None:
    dataplane.failures = [CommitError("no memory")]
    engine.apply(upserts(service()))
    with pytest.raises(CommitError, match="no memory"):
        engine.sync()


def test_stale_flows_go_after_the_commit_and_only_if_a_slice_with_udp_changed(
    engine: Engine, dataplane: Dataplane
) -> None:
    engine.apply(upserts(service("dns", ports=UDP_PORT)))
    engine.sync()
    engine.apply(upserts(endpoints("10.244.1.5", service="dns", ports=UDP_PORT)))
    assert deleted(engine.sync()) == {4: 1}
    assert dataplane.log[-2:] == ["commit", "flows of IPv4"]
    assert deleted(engine.sync()) == {}


def test_flows_of_a_failed_sync_are_deleted_when_it_succeeds(engine: Engine, dataplane: Dataplane) -> None:
    engine.apply(upserts(service("dns", ports=UDP_PORT), endpoints("10.244.1.5", service="dns", ports=UDP_PORT)))
    engine.sync()
    dataplane.failures = [CommitError("busy")]
    engine.apply([Delete("EndpointSlice", "shop", "dns-1")])
    with pytest.raises(CommitError):
        engine.sync()
    assert deleted(engine.sync()) == {4: 1}


def test_flows_that_could_not_be_deleted_are_tried_again(
    engine: Engine, dataplane: Dataplane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_table: ServiceTable, _family: int) -> int:
        raise NetlinkError("read tracked flows", 1)

    engine.apply(upserts(service("dns", ports=UDP_PORT), endpoints("10.244.1.5", service="dns", ports=UDP_PORT)))
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "delete_stale_flows", fail)
        assert deleted(engine.sync()) == {}
        assert "read tracked flows" in engine.flow_failure
    assert engine.pending
    again = engine.sync()
    assert (deleted(again), again.full) == ({4: 1}, False)
    assert (engine.pending, engine.flow_failure) == (False, "")


def test_a_preview_writes_nothing(engine: Engine, dataplane: Dataplane) -> None:
    engine.apply(upserts(service()))
    preview = engine.preview()
    assert (preview.changes, preview.size, len(preview.after)) == (True, 1, 1)
    assert "commit" not in dataplane.log
    engine.sync()
    assert not engine.preview().changes
