# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a source (API server, folder of manifests) tells the loop that owns the engine.

A source runs in threads of its own, parses each object as soon as it arrives (so that no JSON is kept) and puts events
into the inbox with put(); it never waits for the loop. The loop applies events in the order they were put.

The first lists are complete when every kind of KINDS was replaced once; before that nothing is written.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, Union

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import ApiObject
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal

KINDS = ("Service", "EndpointSlice", "Node", "ServiceCIDR")


class Replaced(NamedTuple):
    """A complete list of one kind: whatever is not in it is gone.

    An object that was refused is named in refusals and keeps its last good version, if it had one.
    """

    kind: str
    objects: tuple[ApiObject, ...]
    refusals: tuple[Refusal, ...] = ()


class Upserted(NamedTuple):
    """An object is there, new or changed. received: time.monotonic() when its bytes had arrived."""

    obj: ApiObject
    received: float


class Deleted(NamedTuple):
    """An object is gone."""

    kind: str
    namespace: str
    name: str
    received: float


class Refused(NamedTuple):
    """An object arrived that cannot be used; its last good version, if any, stays in force."""

    refusal: Refusal
    received: float


class SourceState(NamedTuple):
    """How one kind's connection to its source is doing, for the status and the metrics.

    connected: a list or watch works. server: the API endpoint or the folder. detail: the last error and what is
    done about it, "" if all is well.
    """

    kind: str
    connected: bool
    server: str
    detail: str = ""


Event = Union[Replaced, Upserted, Deleted, Refused, SourceState]


class Sink(Protocol):
    """Where a source puts its events; safe to call from any thread, never blocks."""

    def put(self, event: Event) -> None:
        """Hand over one event."""


class Source(Protocol):
    """A place objects come from."""

    def start(self, sink: Sink) -> None:
        """Begin to list and watch in threads of its own; returns at once."""

    def stop(self) -> None:
        """End the threads."""

    def problems(self) -> tuple[str, ...]:
        """Return what needs attention although the source works, one sentence each. Safe to call from any thread."""
