"""Everything an API server can do wrong: named, counted, costing only itself, and over when the server recovers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import api_client, reflector
from devtools.apiserver import ApiServer
from devtools.apiserver.faults import (
    Action,
    CutMidChunk,
    Drop,
    ErrorEvent,
    Garbage,
    Hang,
    NotHttp,
    Refuse,
    Reply,
    ReplyStream,
    Slow,
)
from devtools.waiting import eventually
from tests.api.conftest import StartSource
from tests.api.objects import endpoint_slice, service


class Row(NamedTuple):
    """An action, the label under which it is counted ("" for no failure at all), and words of the message."""

    name: str
    action: Action
    label: str
    words: str = ""


LIST = [
    Row("slow", Slow(piece=700, pause_seconds=0.001), ""),
    Row("closes mid-chunk", CutMidChunk(after=300), "closed", "in the middle of the answer"),
    Row("closes instead of answering", Drop(), "closed", "connection lost"),
    Row("garbage", Garbage(), "garbage", "not JSON"),
    Row("JSON of another kind", Reply(b'{"kind":"Table","metadata":{}}'), "garbage", "is no list"),
    Row("items of a wrong type", Reply(b'{"metadata":{"resourceVersion":"1"},"items":{}}'), "garbage", "is no list"),
    Row("a list without version", Reply(b'{"metadata":{},"items":[]}'), "garbage", "without version"),
    Row("JSON without end", Reply(b"[" * 50_000), "garbage", "not JSON"),
    Row("no HTTP", NotHttp(), "garbage", "no HTTP"),
    Row("nothing", Hang(), "timeout", "no answer in time"),
    Row("401", Refuse(401, "Unauthorized"), "unauthorized", "certificate or token is not accepted"),
    Row("403", Refuse(403, "services is forbidden"), "forbidden", "services is forbidden"),
    Row("410", Refuse(410), ""),
    Row("429", Refuse(429, "slow down"), "throttled", "slow down"),
    Row("500", Refuse(500, "etcd is gone"), "server", "HTTP 500 etcd is gone"),
    Row("503", Refuse(503), "server", "HTTP 503"),
    Row("redirect", Refuse(301), "refused", "HTTP 301"),
]
WATCH = [
    Row("closes mid-chunk", CutMidChunk(after=0), "closed", "in the middle of the answer"),
    Row("closes instead of answering", Drop(), "closed", "connection lost"),
    Row("garbage", Garbage(), "garbage", "not JSON"),
    Row("no HTTP", NotHttp(), "garbage", "no HTTP"),
    Row("half an event", ReplyStream([b'{"type":"ADDED"']), "garbage", "not JSON"),
    Row("an event without object", ReplyStream([b'{"type":"ADDED"}']), "garbage", "'ADDED' with NoneType"),
    Row("an object without version", ReplyStream([b'{"type":"DELETED","object":{}}']), "garbage", "resourceVersion"),
    Row("an end at once", ReplyStream([]), "closed", "ended at once"),
    Row("nothing", Hang(), "timeout", "no answer in time"),
    Row("401", Refuse(401, "Unauthorized"), "unauthorized", "certificate or token is not accepted"),
    Row("403", Refuse(403, "services is forbidden"), "forbidden", "services is forbidden"),
    Row("410", Refuse(410), "gone"),
    Row("410 as an event", ErrorEvent(410), "gone"),
    Row("429", Refuse(429, "slow down"), "throttled", "slow down"),
    Row("500", Refuse(500), "server", "HTTP 500"),
    Row("500 as an event", ErrorEvent(500, "etcdserver: request timed out"), "server", "request timed out"),
]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again after a moment."""
    monkeypatch.setattr(reflector, "FIRST_PAUSE_SECONDS", 0.05)


@pytest.fixture
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Row:
    """Silence is found after a moment where it is what goes wrong; elsewhere a busy machine would pass for silent."""
    given: Row = request.param
    if isinstance(given.action, Hang):
        monkeypatch.setattr(api_client, "READ_SECONDS", 0.5)
    return given


@pytest.mark.parametrize("row", LIST, indirect=True, ids=[row.name for row in LIST])
def test_a_first_list_that_fails(server: ApiServer, kubeconfig: Path, start_source: StartSource, row: Row) -> None:
    server.apply(service("web"), service("db"), endpoint_slice("web-1", "10.244.0.1", of="web"))
    server.inject(row.action, verb="list", resource="services")
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == {"web", "db"})
    errors = source.counters["Service"].errors
    assert set(errors) == ({row.label} if row.label else set())
    assert row.words in recorder.details()
    assert len(recorder.lists("Service")) == 1
    recorder.wait(lambda r: r.names("EndpointSlice") == {"web-1"})
    assert not source.counters["EndpointSlice"].errors, "a resource does not suffer for another"


@pytest.mark.parametrize("row", WATCH, indirect=True, ids=[row.name for row in WATCH])
def test_a_watch_that_fails(server: ApiServer, kubeconfig: Path, start_source: StartSource, row: Row) -> None:
    server.apply(service("web"), service("db"))
    server.inject(row.action, verb="watch", resource="services")
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == {"web", "db"})
    server.apply(service("late"))
    recorder.wait(lambda r: r.names("Service") == {"web", "db", "late"})
    counters = source.counters["Service"]
    assert counters.errors.get(row.label) == 1
    assert row.words in recorder.details()
    assert counters.relists == (1 if row.label == "gone" else 0), "only 410 makes a new list necessary"
    first_complete = recorder.history.index({"web", "db"})
    assert all({"web", "db"} <= known for known in recorder.history[first_complete:]), "nothing was ever lost"


def test_a_server_that_asks_for_a_pause_gets_it(server: ApiServer, kubeconfig: Path, start_source: StartSource) -> None:
    server.apply(service("web"))
    server.inject(Refuse(429, retry_after=2), verb="list", resource="services")
    _source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == {"web"})
    first, second = [r.at for r in server.requests if (r.verb, r.resource) == ("list", "services")]
    assert second - first >= 2.0


def test_a_failure_that_lasts_is_retried_ever_more_slowly(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    server.apply(service("web"))
    server.inject(Refuse(500), verb="list", resource="services", times=6)
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == {"web"})
    times = [r.at for r in server.requests if (r.verb, r.resource) == ("list", "services")]
    pauses = [after - before for before, after in zip(times, times[1:], strict=False)]
    # From 0.05 s, doubled each time, each between half and all of it.
    assert all(pause >= 0.05 * 2**step / 2 for step, pause in enumerate(pauses))
    assert source.counters["Service"].errors == {"server": 6}


def test_a_watch_that_worked_and_was_closed_is_opened_again_at_once(
    server: ApiServer, kubeconfig: Path, start_source: StartSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a load balancer that closes quiet connections: no complaint, and no pause."""
    monkeypatch.setattr(reflector, "SHORT_WATCH_SECONDS", 0.0)
    monkeypatch.setattr(reflector, "FIRST_PAUSE_SECONDS", 3600.0)
    source, recorder = start_source(kubeconfig)
    server.wait_for_requests(lambda log: sum(r.verb == "watch" for r in log) >= 4)
    eventually(lambda: all(counters.watches == 1 for counters in source.counters.values()), "four open watches")
    server.listeners[0].drop_connections()
    server.apply(service("late"))
    recorder.wait(lambda r: r.names("Service") == {"late"})
    assert source.counters["Service"].errors == {"closed": 1}
    assert not recorder.details()


def test_a_server_whose_versions_went_back_is_listed_again(
    kubeconfig: Path, server: ApiServer, start_source: StartSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after etcd was restored: the server takes a watch from a version of its future, and keeps silent."""
    monkeypatch.setattr(reflector, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(reflector, "WATCH_SECONDS", (1, 1))
    server.apply(*(service(f"s-{number}") for number in range(20)))
    source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: len(r.names("Service")) == 20)
    server.listeners[0].close()
    with ApiServer(server.data, listen=[("127.0.0.1", server.listeners[0].port)]) as restored:
        restored.apply(service("restored"))
        recorder.wait(lambda r: r.names("Service") == {"restored"})
        assert source.counters["Service"].relists >= 1
        source.stop()


def test_one_bad_object_costs_only_itself(server: ApiServer, kubeconfig: Path, start_source: StartSource) -> None:
    server.apply(service("web"), service("bad", ports=[{"port": 70000}]))
    _source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == {"web"})
    assert "70000" in recorder.refused["bad"]
    server.apply(service("web", ports=[{"port": 0}]))
    recorder.wait(lambda r: "web" in r.refused)
    assert recorder.names("Service") == {"web"}, "its last good version stays"
    server.apply(service("web", ports=[{"port": 81}]), service("more"))
    recorder.wait(lambda r: r.names("Service") == {"web", "more"})


PAGES = [(1, 2, "10"), (3, 4, None)]


@pytest.mark.parametrize(("expiries", "lists", "last_limit"), PAGES)
def test_a_continue_token_that_expires_starts_the_list_over(
    server: ApiServer,
    kubeconfig: Path,
    start_source: StartSource,
    monkeypatch: pytest.MonkeyPatch,
    expiries: int,
    lists: int,
    last_limit: str | None,
) -> None:
    monkeypatch.setattr(reflector, "PAGE", 10)
    names = {f"s-{number}" for number in range(25)}
    server.apply(*(service(name) for name in sorted(names)))
    server.inject(Refuse(410), verb="list", resource="services", continued=True, times=expiries)
    _source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == names)
    fresh = [r for r in server.requests if (r.verb, r.resource) == ("list", "services") and "continue" not in r.query]
    assert len(fresh) == lists
    assert fresh[-1].query.get("limit") == last_limit, "a list that expires time and again is asked for in one piece"
    assert len(recorder.lists("Service")) == 1, "no part of an expired list was told"


def test_pages_of_one_list_agree_although_objects_change_meanwhile(
    server: ApiServer, kubeconfig: Path, start_source: StartSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "PAGE", 10)
    names = [f"s-{number:02}" for number in range(30)]
    server.apply(*(service(name) for name in names))
    server.inject(Slow(piece=400, pause_seconds=0.002), verb="list", resource="services", continued=True, times=None)
    _source, recorder = start_source(kubeconfig)
    server.wait_for_requests(lambda log: any("continue" in r.query for r in log if r.resource == "services"))
    server.delete(service(names[29]))
    server.apply(service("s-30"))
    recorder.wait(lambda r: r.names("Service") == {*names[:29], "s-30"})


def test_an_api_server_without_service_cidrs(kubeconfig: Path, tmp_path: Path, start_source: StartSource) -> None:
    with ApiServer(absent_groups=["networking.k8s.io"]) as old:
        kubeconfig.write_text(old.kubeconfig())
        source, recorder = start_source(kubeconfig)
        recorder.wait(lambda r: len(r.lists("ServiceCIDR")) == 1 and "going on without" in r.details())
        recorder.wait(lambda _r: source.synced)
        source.stop()


def test_an_api_server_that_cannot_select_by_cluster_ip(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    server.apply(service("web"))
    server.inject(Refuse(400, "field label not supported: spec.clusterIP"), verb="list", resource="services")
    _source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == {"web"})
    server.wait_for_requests(lambda log: any((r.verb, r.resource) == ("watch", "services") for r in log))
    first, *later = [r.query.get("fieldSelector") for r in server.requests if r.resource == "services"]
    assert first == "spec.clusterIP!=None"
    assert set(later) == {None}
