"""Kubernetes Events on an API server: with the rights of kube-proxy's role, and never in anybody's way."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import event_recorder
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_client import ApiClient
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.credentials import Credentials
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.event_recorder import LOST, EventRecorder
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.happenings import Happening
from devtools.apiserver import ApiServer
from devtools.apiserver.faults import Refuse
from devtools.apiserver.resources import by_kind
from devtools.conformance.netns import NetworkNamespace
from devtools.kproxyd_process import KproxydProcess
from devtools.waiting import eventually
from tests.api.objects import node, service

HAPPENING = Happening("Service", "shop", "web", "FailedToStartServiceHealthcheck", "Listen", "port 32080 is taken")


def events(server: ApiServer) -> list[dict[str, Any]]:
    """Return the Events that the server holds."""
    collection = server.api.store.collection(by_kind("events.k8s.io/v1", "Event"))
    return server.call(lambda: [json.loads(entry.encoded) for entry in collection.snapshot()])


@pytest.fixture
def recorder(kubeconfig: Path) -> Iterator[EventRecorder]:
    made = EventRecorder(ApiClient(Credentials(str(kubeconfig))), "gpu-a")
    made.start()
    yield made
    made.stop()


def test_an_event_names_the_service_as_kubectl_describe_looks_for_it(
    server: ApiServer, recorder: EventRecorder
) -> None:
    server.apply(service("web"))
    for _again in range(3):
        recorder.record(HAPPENING)
    eventually(
        lambda: [event.get("series", {}).get("count") for event in events(server)] == [2], "one Event that counts"
    )
    (event,) = events(server)
    services = server.api.store.collection(by_kind("v1", "Service"))
    (held,) = server.call(lambda: [json.loads(entry.encoded) for entry in services.snapshot()])
    assert event["regarding"]["uid"] == held["metadata"]["uid"]
    assert event["reason"] == HAPPENING.reason


def test_an_event_waits_for_a_server_that_is_not_well(
    server: ApiServer, recorder: EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.inject(Refuse(503), verb="create", resource="events", times=2)
    recorder.record(HAPPENING)
    eventually(lambda: len(events(server)) == 1, "an Event")
    assert recorder.counts[LOST] == 0


def test_who_may_not_write_events_is_told_once_and_goes_on(
    server: ApiServer, recorder: EventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    server.inject(Refuse(403, "events is forbidden"), verb="create", resource="events", times=2)
    for number in range(2):
        recorder.record(HAPPENING._replace(name=f"web-{number}"))
    recorder.record(HAPPENING)
    eventually(lambda: len(events(server)) == 1, "an Event")
    assert recorder.counts[LOST] == 2
    assert sum("Events cannot be written" in record.getMessage() for record in caplog.records) == 1


def test_too_many_that_wait_cost_the_oldest(kubeconfig: Path) -> None:
    recorder = EventRecorder(ApiClient(Credentials(str(kubeconfig))), "gpu-a")  # not started: nothing is taken
    for number in range(event_recorder._MAX_WAITING + 5):
        recorder.record(HAPPENING._replace(name=f"web-{number}"))
    assert recorder.counts[LOST] == 5


def test_kproxyd_writes_that_it_started_and_which_port_it_cannot_open() -> None:
    namespace = NetworkNamespace()
    namespace.ip(["link set lo up", "address add 192.0.2.11/32 dev lo"])
    with ApiServer(network_namespace=namespace.path, listen=[("127.0.0.1", 0)]) as server:
        checked = service("web", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=32080)
        server.apply(node("n1"), checked)
        daemon = KproxydProcess(namespace, "n1", kproxy={"source": "api"}, nodePortAddresses=["192.0.2.0/24"])
        kubeconfig = daemon.folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        daemon.config["clientConnection"] = {"kubeconfig": str(kubeconfig)}
        with namespace.entered():
            taken = socket.socket()
        try:
            taken.bind(("192.0.2.11", 32080))
            taken.listen()
            daemon.start()
            eventually(
                lambda: (
                    {(event["regarding"]["kind"], event["reason"]) for event in events(server)}
                    == {("Node", "Starting"), ("Service", "FailedToStartServiceHealthcheck")}
                ),
                "the Events of a start with a port that is taken",
            )
        finally:
            taken.close()
            daemon.close()
            namespace.close()
