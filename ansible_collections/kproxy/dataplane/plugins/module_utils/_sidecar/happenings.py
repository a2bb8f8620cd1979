# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What happens to a Service or to this node, and what becomes of it as Kubernetes Events (KEP-383). Pure.

The same happening again is a count in the Event that exists, told to the API server at its second time and then at
most every six minutes, as client-go does. Whatever goes wrong, a node writes no more than a burst and a slow trickle.
"""

from __future__ import annotations

import datetime
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Union

CONTROLLER = "kproxy.dataplane/kproxyd"
#: Seconds after which a count is told again, and after which a happening that returns is a new one.
TELL_SECONDS = 360.0
FORGET_SECONDS = 720.0
#: Requests at once, and seconds until one more is allowed.
BURST = 25
REFILL_SECONDS = 15.0
_MAX_KNOWN = 512
_MAX_NOTE = 1024
_MAX_INSTANCE = 128
_MAX_NAME = 253 - 1 - 16
_API = "/apis/events.k8s.io/v1/namespaces/%s/events"


class Happening(NamedTuple):
    """Something that whoever looks at an object should know.

    kind: Service or Node (namespace empty). reason: why, in one word for programs; action: what was being done.
    """

    kind: str
    namespace: str
    name: str
    reason: str
    action: str
    note: str
    warning: bool = True


class Recorder(Protocol):
    """Where happenings go; safe to call from any thread, never blocks, never raises."""

    def record(self, happening: Happening) -> None:
        """Take one happening."""


class NoRecorder:
    """For sources that have no place for Events."""

    def record(self, happening: Happening) -> None:
        """Forget it: the log has it."""


class Create(NamedTuple):
    """A new Event; its `regarding` still lacks a Service's uid."""

    path: str
    body: dict[str, Any]


class Count(NamedTuple):
    """One more in an Event that exists; a merge patch."""

    path: str
    body: dict[str, Any]


class Nothing(NamedTuple):
    """Nothing to tell now. suppressed: there was, but not so many at once."""

    suppressed: bool


Decision = Union[Create, Count, Nothing]


@dataclass
class _Series:
    path: str
    count: int
    last: float
    told: float


class Correlator:
    """Decides about happenings, one after the other."""

    def __init__(self, instance: str, clock: Callable[[], float]) -> None:
        """Take this node's name and a clock in seconds since the epoch."""
        self._instance = instance[:_MAX_INSTANCE]
        self._clock = clock
        self._known: OrderedDict[Happening, _Series] = OrderedDict()
        self._allowed = float(BURST)
        self._refilled = clock()

    def decide(self, happening: Happening) -> Decision:
        """Return what to tell the API server about a happening."""
        now = self._clock()
        series = self._known.get(happening)
        # A clock that was set back says nothing about how long ago it was.
        if series is not None and not 0 <= now - series.last < FORGET_SECONDS:
            series = None
        if series is not None:
            series.count += 1
            series.last = now
            if series.count > 2 and now - series.told < TELL_SECONDS:
                return Nothing(False)
            if not self._may(now):
                return Nothing(True)
            series.told = now
            return Count(series.path, {"series": {"count": series.count, "lastObservedTime": micro_time(now)}})
        if not self._may(now):
            return Nothing(True)
        path, body = self._event(happening, now)
        self._known[happening] = _Series("%s/%s" % (path, body["metadata"]["name"]), 1, now, now)
        self._known.move_to_end(happening)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return Create(path, body)

    def lost(self, happening: Happening) -> None:
        """Note that the Event is not there (any more): the next such happening is a new one."""
        self._known.pop(happening, None)

    def _may(self, now: float) -> bool:
        self._allowed = min(float(BURST), self._allowed + max(0.0, now - self._refilled) / REFILL_SECONDS)
        self._refilled = now
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True

    def _event(self, happening: Happening, now: float) -> tuple[str, dict[str, Any]]:
        namespace = happening.namespace or "default"
        regarding = {"apiVersion": "v1", "kind": happening.kind, "name": happening.name}
        if happening.namespace:
            regarding["namespace"] = happening.namespace
        else:
            # What kubectl describe looks for: kubelet and kube-proxy do not know a Node's uid either.
            regarding["uid"] = happening.name
        return _API % namespace, {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                "namespace": namespace,
                "name": "%s.%s" % (happening.name[:_MAX_NAME].rstrip("-."), uuid.uuid4().hex[:16]),
            },
            "eventTime": micro_time(now),
            "type": "Warning" if happening.warning else "Normal",
            "reason": happening.reason,
            "action": happening.action,
            "note": shortened(happening.note),
            "regarding": regarding,
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
        }


def micro_time(seconds: float) -> str:
    """Return a time as the API's MicroTime: RFC 3339 in UTC with six digits."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(note: str) -> str:
    """Return a note within the 1024 bytes that the API server accepts."""
    raw = note.encode()
    return note if len(raw) <= _MAX_NOTE else raw[: _MAX_NOTE - 3].decode(errors="ignore") + "..."


class Happenings:
    """What the parts of kproxyd tell, in kube-proxy's words where it has any."""

    def __init__(self, node_name: str, recorder: Recorder) -> None:
        """Take this node's name and where to tell."""
        self._node_name = node_name
        self._recorder = recorder

    def started(self, version: str) -> None:
        """Kproxyd runs."""
        self._of_node("Starting", "StartKproxyd", "kproxyd %s" % version, warning=False)

    def health_endpoint_failed(self, why: str) -> None:
        """/healthz cannot be served."""
        self._of_node("FailedToStartProxierHealthcheck", "StartKproxyd", why)

    def metrics_endpoint_failed(self, why: str) -> None:
        """/metrics cannot be served."""
        self._of_node("FailedToStartMetricServer", "StartKproxyd", why)

    def health_check_failed(self, namespace: str, service: str, port: int, why: str) -> None:
        """A health check node port cannot be opened."""
        note = "node %s failed to start healthcheck %s/%s on port %d: %s" % (
            self._node_name, namespace, service, port, why,
        )  # fmt: skip
        self._recorder.record(
            Happening("Service", namespace, service, "FailedToStartServiceHealthcheck", "Listen", note)
        )

    def service_refused(self, namespace: str, service: str, why: str) -> None:
        """The kernel does not take what a Service needs."""
        note = "node %s does not serve it: the kernel refuses it: %s" % (self._node_name, why)
        self._recorder.record(Happening("Service", namespace, service, "FailedToProgramService", "Sync", note))

    def sync_failed(self, why: str, state: str) -> None:
        """A commit failed; state: what is in force."""
        self._of_node("FailedToSync", "Sync", "%s; %s" % (why, state))

    def tables_repaired(self, who: str) -> None:
        """Something else had altered our tables."""
        self._of_node("RepairedTables", "Sync", "something else had altered the service tables: %s" % who)

    def _of_node(self, reason: str, action: str, note: str, warning: bool = True) -> None:
        self._recorder.record(Happening("Node", "", self._node_name, reason, action, note, warning))
