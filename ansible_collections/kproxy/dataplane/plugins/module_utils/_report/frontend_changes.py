# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The difference between two states of the frontends, as Ansible shows it and as later tasks read it.

One line per fact: an address and what it does to clients, an endpoint of a service port. What is the same before and
after is left out, the order depends on nothing but the lines, and neither slots nor handles nor counters are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import FrontendState
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_socket_address

States = Mapping[FrontendKey, FrontendState]

# A diff is for reading: beyond this many lines it tells how many it left out.
MAX_LINES = 400


class Fact(NamedTuple):
    """One thing that is in force. Sorted by service, addresses before endpoints."""

    service: str
    order: int
    text: str

    def __str__(self) -> str:
        """Return the line that people read."""
        return f"{self.service}: {self.text}"


class Changes(NamedTuple):
    """What goes and what comes. Both sorted; no fact is in both."""

    before: tuple[Fact, ...]
    after: tuple[Fact, ...]


def compare(before: States, after: States) -> Changes:
    """Return the facts that hold in only one of the states."""
    touched = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    # All addresses of a service port share its endpoints, so an endpoint goes only when it goes from all of them.
    services = {state.service for key in touched for state in (before.get(key), after.get(key)) if state}
    old, new = set(_facts(before, services)), set(_facts(after, services))
    return Changes(tuple(sorted(old - new)), tuple(sorted(new - old)))


def _facts(states: States, services: set[str]) -> Iterable[Fact]:
    for key, state in states.items():
        if state.service not in services:
            continue
        yield Fact(state.service, 0, f"{key} {state.verdict}")
        for endpoint in state.endpoints:
            yield Fact(state.service, 1, f"endpoint {format_socket_address(*endpoint)}")
        for endpoint in state.local_endpoints:
            yield Fact(state.service, 2, f"endpoint {format_socket_address(*endpoint)} under the Local policy")


def diff(changes: Changes, others: Iterable[str] = ()) -> dict[str, str]:
    """Return Ansible's diff. ``others`` are changes that no frontend shows; they are told as coming."""
    before = _bounded([str(fact) for fact in changes.before])
    after = _bounded([*(str(fact) for fact in changes.after), *others])
    return {
        "before_header": "services in the kernel",
        "after_header": "services in the kernel",
        "before": before,
        "after": after,
    }


def _bounded(lines: list[str]) -> str:
    shown = lines[:MAX_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} lines more")
    return "".join(f"{line}\n" for line in shown)


def summary(changes: Changes) -> dict[str, Any]:
    """Return the endpoints that come, go and move, by service port, and how many there are of each.

    An endpoint that goes while another comes in the same service port has moved: a pod was replaced.
    """
    gone, come = _endpoints(changes.before), _endpoints(changes.after)
    added: list[str] = []
    removed: list[str] = []
    moved: list[str] = []
    for service in sorted({*gone, *come}):
        old, new = gone.get(service, []), come.get(service, [])
        pairs = min(len(old), len(new))
        moved += [f"{service} {left} -> {right}" for left, right in zip(old, new)]
        removed += [f"{service} {endpoint}" for endpoint in old[pairs:]]
        added += [f"{service} {endpoint}" for endpoint in new[pairs:]]
    return {
        "added": added[:MAX_LINES],
        "removed": removed[:MAX_LINES],
        "moved": moved[:MAX_LINES],
        "counts": {"added": len(added), "removed": len(removed), "moved": len(moved)},
    }


def _endpoints(facts: Iterable[Fact]) -> dict[str, list[str]]:
    """Return the endpoints of the facts by service port; one under both policies counts once."""
    found: dict[str, dict[str, None]] = {}
    for fact in facts:
        if fact.order:
            found.setdefault(fact.service, {})[fact.text.split()[1]] = None
    return {service: list(endpoints) for service, endpoints in found.items()}
