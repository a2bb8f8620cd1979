# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Even and uneven spreads, and that the bound on false alarms is kept: computed over every outcome."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.spread import (
    at_least,
    at_most,
    notices_a_missing_one,
    uneven,
)

CHANCE = 1e-6
ABC = ["a", "b", "c"]

EVEN = [
    ("as even as can be", {"a": 20, "b": 20, "c": 20}, ABC),
    ("as chance has it", {"a": 12, "b": 20, "c": 28}, ABC),
    ("one endpoint", {"a": 60}, ["a"]),
    ("none reached", {}, ABC),
    ("too few to say", {"a": 4}, ABC),
    ("strangers do not count", {"a": 20, "b": 20, "c": 20, "x": 900}, ABC),
]


@pytest.mark.parametrize(("counts", "endpoints"), [row[1:] for row in EVEN], ids=[row[0] for row in EVEN])
def test_even(counts: dict[str, int], endpoints: list[str]) -> None:
    assert uneven(counts, endpoints, CHANCE) == ""


UNEVEN = [
    ("one is never reached", {"a": 30, "b": 30}, ABC, "c got 0 of 60 connections, 20 would be even over 3 endpoints"),
    ("all go to one", {"b": 60}, ABC, "a got 0 of 60"),
    ("one gets twice its share", {"a": 150, "b": 75, "c": 75}, ABC, "a got 150 of 300"),
]


@pytest.mark.parametrize(("counts", "endpoints", "words"), [row[1:] for row in UNEVEN], ids=[row[0] for row in UNEVEN])
def test_uneven(counts: dict[str, int], endpoints: list[str], words: str) -> None:
    assert words in uneven(counts, endpoints, CHANCE)


@pytest.mark.parametrize(("endpoints", "draws", "bound"), [(2, 12, 0.05), (3, 8, 0.05), (4, 6, 0.2), (3, 9, 0.001)])
def test_the_chance_of_a_false_alarm_is_at_most_the_one_asked_for(endpoints: int, draws: int, bound: float) -> None:
    names = [str(number) for number in range(endpoints)]
    alarms = sum(bool(uneven(Counter(drawn), names, bound)) for drawn in itertools.product(names, repeat=draws))
    assert alarms / endpoints**draws <= bound


@pytest.mark.parametrize(("draws", "share"), [(10, 0.5), (60, 1 / 3), (250, 0.1)])
def test_tails_add_up(draws: int, share: float) -> None:
    for count in range(draws):
        assert math.isclose(at_most(count, draws, share) + at_least(count + 1, draws, share), 1)
    assert math.isclose(at_least(0, draws, share), 1)


@pytest.mark.parametrize(
    ("endpoints", "draws", "enough"),
    [(1, 0, True), (2, 22, True), (2, 21, False), (3, 39, True), (3, 20, False), (10, 250, True), (10, 60, False)],
)
def test_how_many_are_needed_to_miss_one(endpoints: int, draws: int, enough: bool) -> None:
    assert notices_a_missing_one(endpoints, draws, CHANCE) is enough
    names = [str(number) for number in range(endpoints)]
    even = {name: draws / max(1, endpoints - 1) for name in names[1:]}
    if endpoints > 1:
        counts = {name: round(count) for name, count in even.items()}
        found = uneven({**counts, names[1]: draws - sum(counts.values()) + counts[names[1]]}, names, CHANCE)
        assert ("0 got 0" in found) is enough
