"""Play the story of a case on a system: set up, step, probe, compare."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from devtools.conformance import facts
from devtools.conformance.corpus import Case, Client, ConntrackEntry, Probe, Scope
from devtools.conformance.facts import HttpResponse
from devtools.conformance.judge import Circumstances, History, judge, needless_masquerades, skew
from devtools.conformance.observation import ANSWERED, Observation
from devtools.conformance.population import has_affinity, is_pinned
from devtools.conformance.traffic import Shot

NEEDLESS_MASQUERADE = "connections translated at the socket, where masquerading is needless"
FEW = 2
"""Connections for a verdict that leaves nothing to chance."""
DOUBTFUL_DEVIATIONS, SURE_PER_ENDPOINT = 3.0, 80
"""A spread that is this uneven is looked at again with more connections."""
MIN_CONNECTIONS, PER_ENDPOINT, MAX_PER_ENDPOINT = 20, 12, 30
"""Each endpoint of k shows up in 12 k connections but for one run in e^12 / k; what is still missing gets more."""


class System(Protocol):
    """Something that can be asked: the product with real packets, or a model of it."""

    patience_seconds: float
    """How long a fact beside the packets may take to come true after a step."""

    def start(self, scope: Scope) -> None: ...

    def apply(self, scope: Scope) -> None: ...

    def advance(self, seconds: float) -> None: ...

    def shoot(self, shots: Sequence[Shot]) -> list[Observation]: ...

    def insert_conntrack(self, entries: Sequence[ConntrackEntry]) -> None: ...

    def conntrack_left(self) -> set[str]: ...

    def health_check(self, check: Mapping[str, Any]) -> HttpResponse | None: ...

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse: ...

    def metric(self, name: str, labels: Mapping[str, str]) -> float | None: ...


@dataclass(frozen=True)
class Story:
    """A case and who plays the clients in it."""

    case: Case
    doubles: Mapping[str, list[str]]
    circumstances: Circumstances
    tally: Counter[str] = field(default_factory=Counter)
    """What was accepted although it is not to the letter, by what it is."""

    def clients(self, probe: Probe) -> list[Client]:
        client = probe.client
        ips = [client.ip, *([] if client.on_node else self.doubles.get(client.ip, []))]
        return [Client(ip, client.kind, client.interface) for ip in ips]


def play(story: Story, system: System) -> Iterator[str]:
    """Yield what is wrong, sentence by sentence."""
    case = story.case
    system.start(case.start)
    history: History = {}
    for number, scope in enumerate(case.scopes):
        if number == 1 and case.conntrack_entries:
            system.insert_conntrack(case.conntrack_entries)
        if number:
            system.apply(scope)
            if scope.advance_seconds:
                system.advance(scope.advance_seconds)
        prefix = f"step {scope.title!r}: " if number else ""
        for problem in _check(story, system, scope, history):
            yield prefix + problem


def _check(story: Story, system: System, scope: Scope, history: History) -> Iterator[str]:
    if scope.conntrack_flush is not None:
        flush = scope.conntrack_flush
        yield from _eventually(system, lambda: facts.judge_conntrack(flush, system.conntrack_left()))
    if has_affinity(story.case):
        for probe in scope.probes:
            yield from _probe_all(story, system, [probe], history)
    else:
        for together in _concurrent(scope.probes):
            yield from _probe_all(story, system, together, history)
    for check in scope.health_checks:
        yield from _eventually(system, lambda check=check: facts.judge_health_check(check, system.health_check(check)))  # type: ignore[misc]
    for check in scope.proxy_health:
        yield from facts.judge_proxy_health(check, system.proxy_health(check))
    for sample in scope.metrics:
        yield from _eventually(
            system,
            lambda sample=sample: facts.judge_metric(sample, system.metric(sample["name"], sample["labels"])),  # type: ignore[misc]
        )


def _eventually(system: System, problems: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + system.patience_seconds
    while (found := problems()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _concurrent(probes: Sequence[Probe]) -> Iterator[list[Probe]]:
    """Group probes that can run at once: not one address by two interfaces."""
    group: list[Probe] = []
    via: dict[str, str | None] = {}
    for probe in probes:
        client = probe.client
        if not client.on_node and via.get(client.ip, client.interface) != client.interface:
            yield group
            group, via = [], {}
        via[client.ip] = client.interface
        group.append(probe)
    if group:
        yield group


def _probe_all(story: Story, system: System, probes: Sequence[Probe], history: History) -> Iterator[str]:
    seen: list[list[Observation]] = [[] for _ in probes]
    spread = [_may_spread(story, probe) for probe in probes]
    rounds = [_connections(story, probe, free) for probe, free in zip(probes, spread, strict=True)]
    while any(rounds):
        shots, owners = [], []
        for number, (probe, connections) in enumerate(zip(probes, rounds, strict=True)):
            own = frozenset(ep for ep in probe.expect.endpoints if ep.ip == probe.client.ip)
            for index, client in enumerate(story.clients(probe)):
                shots += [Shot(client, index, probe.to, own if not client.on_node else frozenset())] * connections
                owners += [number] * connections
        for number, observation in zip(owners, system.shoot(shots), strict=True):
            seen[number].append(observation)
        rounds = [
            PER_ENDPOINT * len(probe.expect.endpoints) if free and _wants_more(probe, got) else 0
            for probe, got, free in zip(probes, seen, spread, strict=True)
        ]
    for probe, got, free in zip(probes, seen, spread, strict=True):
        at = Circumstances(
            story.circumstances.node_addresses,
            free or _clients_spread(story, probe),
            story.circumstances.unserved,
            story.circumstances.needless_masquerade,
        )
        story.tally[NEEDLESS_MASQUERADE] += needless_masquerades(probe, got, at)
        for problem in judge(probe, got, history, at):
            yield f"{probe}: {problem}"
        if probe.id is not None:
            history[probe.id] = {one.client: one.server for one in got if one.server is not None}


def _may_spread(story: Story, probe: Probe) -> bool:
    """Whether every connection of this probe is free to choose."""
    return probe.expect.verdict in ("dnat", "relay") and not is_pinned(story.case, probe.to)


def _clients_spread(story: Story, probe: Probe) -> bool:
    """Whether clients that are pinned one by one have to show every endpoint together."""
    return probe.expect.same_as is None and len(story.clients(probe)) >= 8 * len(probe.expect.endpoints)


def _connections(story: Story, probe: Probe, free: bool) -> int:
    """How often each client of a probe connects in the first round."""
    if free:
        enough = max(MIN_CONNECTIONS, PER_ENDPOINT * len(probe.expect.endpoints))
        return math.ceil(enough / len(story.clients(probe)))
    return 1 if has_affinity(story.case) else FEW


def _wants_more(probe: Probe, got: Sequence[Observation]) -> bool:
    """Whether an endpoint may be missing by bad luck only."""
    wanted = set(probe.expect.endpoints)
    chosen = Counter(one.server for one in got if one.outcome == ANSWERED)
    if probe.expect.groups:
        wanted = next((set(group) for group in probe.expect.groups if set(chosen) <= set(group)), set())
    if not wanted or not set(chosen) <= wanted or len(got) > sum(chosen.values()):
        return False
    missing = bool(wanted - set(chosen)) and len(got) < MAX_PER_ENDPOINT * len(wanted)
    counts = {server: count for server, count in chosen.items() if server is not None}
    doubtful = skew(wanted, counts) > DOUBTFUL_DEVIATIONS and len(got) < SURE_PER_ENDPOINT * len(wanted)
    return missing or doubtful
