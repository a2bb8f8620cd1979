# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The filter is built anew while programs enter flows and look them up: at every moment, whatever is there is found.

The model runs rebuild() three times; a moment is what lies between two of its steps. A run of a program does one thing
at one moment and the other at another, in either order, but not across a wait(), which ends all runs. All moments are
tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flow_filter import SLOTS, slot_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_flow_filter
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flow_filter import (
    NEEDLESS_SLOTS,
    keep_filter,
    rebuild,
)

KEY = bytes(range(16))
Keys = Callable[[], Iterable[bytes]]


class Run(NamedTuple):
    """The moments at which two programs act: one enters the flow and sets its bytes, one reads the state and a byte."""

    enters: int
    sets: int
    reads_state: int
    reads_byte: int


class Moments:
    """A filter and a table, whose `moment` goes on with every step, and one Run against them. Implements FlowFilter."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.moment = 0
        self.array = 0
        self.in_use = False
        self.waits: list[int] = []
        self.held = False
        self.bytes = [False, False]
        self.state: int | None = None
        self.found = True
        self._act()

    def _act(self) -> None:
        if self.moment == self.run.enters:
            self.held = True
        if self.moment == self.run.sets:
            self.bytes = [True, True]
        if self.moment == self.run.reads_state:
            self.state = self.array if self.in_use else None
        if self.moment == self.run.reads_byte:
            self.found = self.state is None or self.bytes[self.state]

    def _step(self) -> None:
        self.moment += 1
        self._act()

    def wait(self) -> None:
        self.waits.append(self.moment)
        self._step()

    def clear(self, array: int) -> None:
        self.bytes[array] = False
        self._step()

    def keys(self) -> list[bytes]:
        found = [KEY] if self.held else []
        self._step()
        return found

    def mark(self, array: int, slots: Iterable[int]) -> None:
        if list(slots) == [slot_of(KEY)]:
            self.bytes[array] = True
        self._step()

    def read_from(self, array: int) -> None:
        self.array, self.in_use = array, True
        self._step()


def thrice(way: Callable[[Any, Keys], None], run: Run) -> Moments:
    made = Moments(run)
    for _time in range(3):
        way(made, made.keys)
    return made


def runs(way: Callable[[Any, Keys], None]) -> Iterator[Run]:
    """Yield every run that can be: a flow is looked up once it has been entered, and nobody runs across a wait."""
    alone = thrice(way, Run(-1, -1, -1, -1))
    moments = range(alone.moment + 1)
    together = [
        (one, other)
        for one, other in itertools.product(moments, repeat=2)
        if not any(min(one, other) <= wait < max(one, other) for wait in alone.waits)
    ]
    for entering, reading in itertools.product(together, repeat=2):
        if max(entering) <= reading[0] <= reading[1]:
            yield Run(*entering, *reading)


def test_no_flow_is_missed_at_any_moment() -> None:
    tried = list(runs(rebuild))
    assert len(tried) > 300
    assert [one for one in tried if not thrice(rebuild, one).found] == []


def without_waiting_for_readers(held: Any, keys: Keys) -> None:
    other = 1 - held.array
    held.clear(other)
    held.wait()
    held.mark(other, map(slot_of, keys()))
    held.wait()
    held.read_from(other)


def without_waiting_for_entries(held: Any, keys: Keys) -> None:
    other = 1 - held.array
    held.wait()
    held.clear(other)
    held.mark(other, map(slot_of, keys()))
    held.read_from(other)


def reading_the_tables_first(held: Any, keys: Keys) -> None:
    other = 1 - held.array
    found = list(keys())
    held.wait()
    held.clear(other)
    held.wait()
    held.mark(other, map(slot_of, found))
    held.read_from(other)


def in_the_array_that_is_read(held: Any, keys: Keys) -> None:
    held.wait()
    held.clear(held.array)
    held.wait()
    held.mark(held.array, map(slot_of, keys()))
    held.read_from(held.array)


@pytest.mark.parametrize(
    "way",
    [without_waiting_for_readers, without_waiting_for_entries, reading_the_tables_first, in_the_array_that_is_read],
    ids=lambda way: way.__name__,
)
def test_any_other_order_would_miss_one(way: Callable[[Any, Keys], None]) -> None:
    assert any(not thrice(way, one).found for one in runs(way))


class Held:
    """A filter of which only what decides matters."""

    def __init__(self, in_use: bool, filled: int) -> None:
        self.in_use = in_use
        self.array = 0
        self._filled = filled

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def filled(self) -> int:
        return self._filled


@pytest.mark.parametrize(
    ("in_use", "filled", "entries", "former", "built"),
    [
        pytest.param(False, 0, None, {}, True, id="not-in-use"),
        pytest.param(False, 0, 0, {}, True, id="not-in-use-yet-at-a-collection"),
        pytest.param(False, 0, None, {1: "v1"}, False, id="programs-that-set-nothing"),
        pytest.param(True, SLOTS, None, {}, False, id="in-use-and-no-collection"),
        pytest.param(True, NEEDLESS_SLOTS + 10, 10, {}, False, id="as-many-as-may-be"),
        pytest.param(True, NEEDLESS_SLOTS + 11, 10, {}, True, id="too-many"),
        pytest.param(True, SLOTS, SLOTS, {}, False, id="all-needed"),
    ],
)
def test_when_it_is_built(
    monkeypatch: pytest.MonkeyPatch, in_use: bool, filled: int, entries: int | None, former: dict[int, str], built: bool
) -> None:
    monkeypatch.setattr(ebpf_flow_filter, "FlowFilter", lambda _map: Held(in_use, filled))
    building = mock.Mock()
    monkeypatch.setattr(ebpf_flow_filter, "rebuild", building)
    plane = mock.MagicMock()
    plane.former.return_value = former
    assert (keep_filter(plane) if entries is None else keep_filter(plane, entries)) is built
    assert building.called is built
