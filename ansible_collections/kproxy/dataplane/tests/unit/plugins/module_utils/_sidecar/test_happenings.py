# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Happenings become few Events: one each, then counts, never a flood."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.happenings import (
    BURST,
    FORGET_SECONDS,
    REFILL_SECONDS,
    TELL_SECONDS,
    Correlator,
    Count,
    Create,
    Decision,
    Happening,
    Happenings,
    Nothing,
    micro_time,
    shortened,
)

PORT = Happening("Service", "shop", "web", "FailedToStartServiceHealthcheck", "Listen", "port 32080 is taken")


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self) -> None:
        self.clock = Clock()
        self.correlator = Correlator("n1", self.clock)

    def decide(self, happening: Happening = PORT, after: float = 0.0) -> Decision:
        self.clock.now += after
        return self.correlator.decide(happening)


def test_a_new_happening_is_an_event_of_its_object() -> None:
    decision = World().decide()
    assert isinstance(decision, Create)
    assert decision.path == "/apis/events.k8s.io/v1/namespaces/shop/events"
    body = decision.body
    assert body["metadata"]["name"].startswith("web.")
    assert {key: body[key] for key in ("type", "reason", "action", "note", "regarding", "reportingInstance")} == {
        "type": "Warning",
        "reason": PORT.reason,
        "action": "Listen",
        "note": "port 32080 is taken",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web"},
        "reportingInstance": "n1",
    }
    assert body["eventTime"] == "2023-11-14T22:13:20.000000Z"


def test_a_nodes_event_is_in_the_default_namespace_and_found_by_its_name() -> None:
    decision = World().decide(Happening("Node", "", "n1", "Starting", "StartKproxyd", "kproxyd 1", warning=False))
    assert isinstance(decision, Create)
    assert decision.path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert decision.body["regarding"]["uid"] == "n1"
    assert decision.body["type"] == "Normal"


def test_the_same_again_is_a_count_told_at_the_second_time_and_then_rarely() -> None:
    world = World()
    first = world.decide()
    assert isinstance(first, Create)
    second = world.decide(after=5)
    assert isinstance(second, Count)
    assert second.path == f"{first.path}/{first.body['metadata']['name']}"
    assert second.body["series"]["count"] == 2
    told = [world.decide(after=5) for _again in range(int(TELL_SECONDS / 5))]
    assert [one.body["series"]["count"] for one in told if isinstance(one, Count)] == [2 + len(told)]
    assert Nothing(True) not in told
    assert isinstance(world.decide(after=FORGET_SECONDS), Create)


def test_a_clock_that_was_set_back_silences_nothing() -> None:
    world = World()
    world.decide()
    assert isinstance(world.decide(after=5), Count)
    assert isinstance(world.decide(after=-86400), Create)
    assert isinstance(world.decide(after=5), Count)


def test_an_event_that_was_lost_is_written_anew() -> None:
    world = World()
    world.decide()
    world.correlator.lost(PORT)
    assert isinstance(world.decide(after=5), Create)


def test_a_flood_becomes_a_burst_and_a_trickle() -> None:
    world = World()
    flood = [world.decide(PORT._replace(name=f"s{number}")) for number in range(10 * BURST)]
    assert sum(isinstance(one, Create) for one in flood) == BURST
    assert flood[-1] == Nothing(True)
    assert isinstance(world.decide(PORT._replace(name="later"), after=REFILL_SECONDS), Create)
    assert world.decide(PORT._replace(name="even-later")) == Nothing(True)


@pytest.mark.parametrize("note", ["short", "x" * 1025, "ü" * 1024])
def test_notes_fit(note: str) -> None:
    assert len(shortened(note).encode()) <= 1024
    assert shortened(note)[:5] == note[:5]


def test_names_fit_and_are_valid() -> None:
    decision = World().decide(PORT._replace(name="a" * 235 + "-" + "b" * 17))
    assert isinstance(decision, Create)
    name = decision.body["metadata"]["name"]
    assert len(name) <= 253
    assert "-." not in name


def test_times_have_six_digits() -> None:
    assert micro_time(0.5) == "1970-01-01T00:00:00.500000Z"


def test_every_word_of_ours_has_a_reason_and_an_action() -> None:
    told: list[Happening] = []

    class Remembered:
        def record(self, happening: Happening) -> None:
            told.append(happening)

    tell = Happenings("n1", Remembered())
    tell.started("1.2.3")
    tell.health_endpoint_failed("taken")
    tell.metrics_endpoint_failed("taken")
    tell.health_check_failed("shop", "web", 32080, "taken")
    tell.service_refused("shop", "web", "EINVAL")
    tell.sync_failed("busy", "the last good state is in force")
    tell.tables_repaired("nft (process 7)")
    assert [one.reason for one in told] == [
        "Starting",
        "FailedToStartProxierHealthcheck",
        "FailedToStartMetricServer",
        "FailedToStartServiceHealthcheck",
        "FailedToProgramService",
        "FailedToSync",
        "RepairedTables",
    ]
    assert all(one.action and one.note for one in told)
    assert [one.warning for one in told] == [False] + [True] * 6
