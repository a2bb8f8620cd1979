"""A sink that remembers what a source told it, and lets a test wait for what it expects."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import ApiObject, kind_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import (
    Deleted,
    Event,
    Refused,
    Replaced,
    SourceState,
    Upserted,
)

TIMEOUT_SECONDS = 60.0


class Recorder:
    """Applies events as the owner of the engine does: what is known, and how it came to be."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.objects: dict[tuple[str, str, str], ApiObject] = {}
        self.refused: dict[str, str] = {}  # name of the object -> reason
        self.states: list[SourceState] = []
        self.history: list[set[str]] = []  # names of known Services after each event about objects
        self._changed = threading.Condition()

    def put(self, event: Event) -> None:
        with self._changed:
            self.events.append(event)
            self._apply(event)
            if not isinstance(event, SourceState):
                self.history.append(self.names("Service"))
            self._changed.notify_all()

    def _apply(self, event: Event) -> None:
        if isinstance(event, SourceState):
            self.states.append(event)
        elif isinstance(event, Replaced):
            kept = {(refusal.kind, refusal.namespace, refusal.name) for refusal in event.refusals}
            for key in [key for key in self.objects if key[0] == event.kind and key not in kept]:
                del self.objects[key]
            for obj in event.objects:
                self._add(obj)
            self.refused.update({refusal.name: refusal.reason for refusal in event.refusals})
        elif isinstance(event, Upserted):
            self._add(event.obj)
        elif isinstance(event, Deleted):
            self.objects.pop((event.kind, event.namespace, event.name), None)
        elif isinstance(event, Refused):
            self.refused[event.refusal.name] = event.refusal.reason

    def _add(self, obj: ApiObject) -> None:
        self.objects[kind_of(obj), getattr(obj, "namespace", ""), obj.name] = obj

    def names(self, kind: str) -> set[str]:
        """Return the names of the known objects of a kind."""
        return {key[2] for key in self.objects if key[0] == kind}

    def lists(self, kind: str) -> list[Replaced]:
        """Return the complete lists that were told."""
        return [event for event in self.events if isinstance(event, Replaced) and event.kind == kind]

    def details(self) -> str:
        """Return everything that was said to be wrong."""
        return "\n".join(state.detail for state in self.states if state.detail)

    def wait(self, condition: Callable[[Recorder], bool]) -> None:
        """Wait until the condition holds; fail with what was told instead."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), TIMEOUT_SECONDS):
                told = "\n".join(str(event)[:300] for event in self.events[-20:])
                raise AssertionError(f"not within {TIMEOUT_SECONDS} s; {len(self.events)} events, the last:\n{told}")
