# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Writes happenings as Kubernetes Events, in a thread of its own: neither commits nor answers wait for the API server.

The ClusterRole system:node-proxier allows it. Where it is not allowed, or no API server answers, Events are lost,
which is counted and said once; the log has everything that they would say.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

try:
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector
except ImportError:  # Only the bundle brings it, and only what runs from the bundle uses what is here.
    if not TYPE_CHECKING:
        Collector = object

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_client import ApiClient
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_error import ApiError, Fault
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.backoff import Backoff
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.happenings import (
    Correlator,
    Count,
    Create,
    Happening,
    Nothing,
)

if TYPE_CHECKING:
    from prometheus_client import Metric

LOG = logging.getLogger("kproxyd.events")
WRITTEN, COUNTED, SUPPRESSED, LOST = "written", "counted", "suppressed", "lost"
OUTCOMES = (WRITTEN, COUNTED, SUPPRESSED, LOST)
_MAX_WAITING = 200
# An Event that no server takes for so long says nothing new any more; others wait behind it.
_GIVE_UP_SECONDS = 300.0
# Trying again changes nothing about these answers.
_FINAL = (Fault.FORBIDDEN, Fault.NOT_FOUND, Fault.BAD_REQUEST, Fault.REFUSED)


class EventRecorder:
    """A recorder for nodes whose source is the API server."""

    def __init__(self, client: ApiClient, node_name: str) -> None:
        """Take the client to write with; nothing runs before start()."""
        self._client = client
        self._correlator = Correlator(node_name, time.time)
        self._waiting: deque[Happening] = deque()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._complained = False
        self.counts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """End after the request that runs; what still waits is lost."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()

    def record(self, happening: Happening) -> None:
        """Take one happening. The oldest is lost when too many wait."""
        with self._changed:
            if len(self._waiting) >= _MAX_WAITING:
                self._waiting.popleft()
                self.counts[LOST] += 1
            self._waiting.append(happening)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
                if self._stopping.is_set():
                    return
                happening = self._waiting.popleft()
            self._handle(happening)

    def _handle(self, happening: Happening) -> None:
        decision = self._correlator.decide(happening)
        if isinstance(decision, Nothing):
            self.counts[SUPPRESSED if decision.suppressed else COUNTED] += 1
            return
        backoff, give_up = Backoff(1.0, 15.0), time.monotonic() + _GIVE_UP_SECONDS
        while not self._stopping.is_set():
            try:
                self._send(happening, decision)
            except ApiError as error:
                if error.fault in _FINAL or time.monotonic() >= give_up:
                    self._lost(happening, error)
                    return
                self._stopping.wait(max(backoff.next(), error.retry_after))
            else:
                self.counts[WRITTEN if isinstance(decision, Create) else COUNTED] += 1
                self._complained = False
                return

    def _send(self, happening: Happening, decision: Create | Count) -> None:
        if isinstance(decision, Count):
            self._client.send_json("PATCH", decision.path, decision.body)
            return
        if happening.kind == "Service" and "uid" not in decision.body["regarding"]:
            # kubectl describe asks for Events of this uid. Our role may list Services but not get one.
            path = f"/api/v1/namespaces/{quote(happening.namespace)}/services"
            found, _server = self._client.get_json(path, {"fieldSelector": f"metadata.name={happening.name}"})
            for item in found.get("items") or ():
                decision.body["regarding"]["uid"] = item["metadata"]["uid"]
        self._client.send_json("POST", decision.path, decision.body)

    def _lost(self, happening: Happening, error: ApiError) -> None:
        self._correlator.lost(happening)
        self.counts[LOST] += 1
        if not self._complained and error.fault is not Fault.NOT_FOUND:
            self._complained = True
            LOG.warning("Events cannot be written: %s; what they would say is in this log", error)


class EventCollector(Collector):
    """The counts as a metric, read at each scrape."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        """Yield the family; called by the registry."""
        family = CounterMetricFamily(
            "kproxy_kubernetes_events", "Happenings that were to become Kubernetes Events", labels=["outcome"]
        )
        for outcome in OUTCOMES:
            family.add_metric([outcome], self._recorder.counts[outcome])
        yield family
