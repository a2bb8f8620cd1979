"""Case 25: the watch is too old. The recorded answers are served as they are; requests and knowledge are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.apiserver import ApiServer, RequestRecord
from devtools.apiserver.faults import Refuse, Reply, ReplyStream
from tests.api.conftest import StartSource

CASE = Path(__file__).parent.parent / "cases" / "25-watch-410-relist"
EXPECT: dict[str, Any] = yaml.safe_load((CASE / "expect.yaml").read_text())
KNOWN = {step: set(names) for step, names in EXPECT["known_services"].items()}


def of_services(requests: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [request for request in requests if request.resource == "services"]


def lines(name: str) -> list[bytes]:
    return (CASE / name).read_bytes().splitlines()


@pytest.mark.parametrize("form", ["ERROR event in a 200 stream", "HTTP 410"])
def test_410_lists_again_and_takes_the_list_as_the_whole_truth(
    server: ApiServer, kubeconfig: Path, start_source: StartSource, form: str
) -> None:
    server.inject(Reply((CASE / "1-list.json").read_bytes()), verb="list", resource="services")
    events = lines("2-watch.jsonl")
    if form == "HTTP 410":
        server.inject(ReplyStream(events[:-1]), verb="watch", resource="services")
        server.inject(Refuse(410, "too old resource version: 141 (900)"), verb="watch", resource="services")
    else:
        server.inject(ReplyStream(events), verb="watch", resource="services")
    server.inject(Reply((CASE / "3-list.json").read_bytes()), verb="list", resource="services")
    server.inject(ReplyStream(lines("4-watch.jsonl")), verb="watch", resource="services")
    server.inject(ReplyStream([], hold=True), verb="watch", resource="services")

    source, recorder = start_source(kubeconfig)
    watches = 4 if form == "HTTP 410" else 3
    server.wait_for_requests(lambda log: sum(r.verb == "watch" for r in of_services(log)) >= watches)

    assert recorder.names("Service") == KNOWN["after 4-watch.jsonl"]
    for step in ("after 2-watch.jsonl", "after 3-list.json"):
        assert KNOWN[step] in recorder.history
    asked = [(r.verb, r.query.get("resourceVersion")) for r in of_services(server.requests)]
    resumed = [("watch", "141")] if form == "HTTP 410" else []
    assert asked == [("list", None), ("watch", "100"), *resumed, ("list", None), ("watch", "900"), ("watch", "960")]
    assert all(r.query["allowWatchBookmarks"] == "true" for r in of_services(server.requests) if r.verb == "watch")
    counters = source.counters["Service"]
    assert (counters.relists, counters.errors["gone"], counters.errors["server"]) == (1, 1, 1)
    assert counters.last_success > 0


def test_a_bookmark_moves_the_version_and_is_no_object(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    server.inject(Reply((CASE / "1-list.json").read_bytes()), verb="list", resource="services")
    server.inject(ReplyStream(lines("2-watch.jsonl")[:2]), verb="watch", resource="services")
    server.inject(ReplyStream([], hold=True), verb="watch", resource="services")
    _source, recorder = start_source(kubeconfig)
    server.wait_for_requests(lambda log: sum(r.verb == "watch" for r in of_services(log)) >= 2)
    assert of_services(server.requests)[-1].query["resourceVersion"] == "140"
    assert recorder.names("Service") == KNOWN["after 2-watch.jsonl"]


def test_history_lost_between_two_watches_is_made_up_for(
    server: ApiServer, kubeconfig: Path, start_source: StartSource
) -> None:
    """The same with live objects: changes happen while the watch is cut and the history is forgotten."""
    from tests.api.objects import service

    server.apply(service("a"), service("b"))
    _source, recorder = start_source(kubeconfig)
    recorder.wait(lambda r: r.names("Service") == {"a", "b"})
    server.wait_for_requests(lambda log: any(r.verb == "watch" for r in of_services(log)))
    server.inject(Refuse(503), verb="watch", resource="services", times=None)
    server.listeners[0].drop_connections()
    server.delete(service("b"))
    server.apply(service("c"))
    server.forget_history()
    server.call(server.faults.clear)
    recorder.wait(lambda r: r.names("Service") == {"a", "c"})
    assert len(recorder.lists("Service")) == 2
