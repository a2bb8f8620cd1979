# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The change to the maps: a value, made from the books and what the service table says, in an order that is safe.

No reader of the maps ever follows a dangling reference: what frontends refer to is written before them, and removed
after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Step(NamedTuple):
    """Writes to one map, all upserts before all deletes."""

    map: str
    upserts: dict[bytes, bytes]
    deletes: list[bytes]


class MapPlan:
    """Wanted changes by map name. A key that is upserted is not deleted, in whatever order both were asked for."""

    def __init__(self) -> None:
        self.upserts: dict[str, dict[bytes, bytes]] = {}
        self.deletes: dict[str, dict[bytes, None]] = {}

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Ask for an element to hold this value."""
        self.upserts.setdefault(name, {})[key] = value
        if name in self.deletes:
            self.deletes[name].pop(key, None)

    def remove(self, name: str, key: bytes) -> None:
        """Ask for an element to go, unless the same plan writes it."""
        if key not in self.upserts.get(name, ()):
            self.deletes.setdefault(name, {})[key] = None

    @property
    def size(self) -> int:
        """Number of elements written or deleted."""
        return sum(map(len, self.upserts.values())) + sum(map(len, self.deletes.values()))

    @property
    def empty(self) -> bool:
        """Nothing to do."""
        return self.size == 0

    def merge(self, name: str, elements: Step) -> None:
        """Take over the writes to one map of another plan."""
        for key, value in elements.upserts.items():
            self.put(name, key, value)
        for key in elements.deletes:
            self.remove(name, key)

    def steps_by_map(self) -> Iterator[tuple[str, Step]]:
        """Yield the writes by map, in no particular order."""
        for name in sorted(set(self.upserts) | set(self.deletes)):
            yield name, Step(name, self.upserts.get(name, {}), list(self.deletes.get(name, ())))

    def steps(self) -> Iterator[Step]:
        """Yield the writes in the safe order: referred entries, frontends, then what nobody refers to any more.

        Maglev tables name slots, so they come after new slots and before the removal of old ones. Those that go make
        room for others first: a set without its table is chosen from at random.
        """
        names = sorted(set(self.upserts) | set(self.deletes))
        frontends = [name for name in names if name[:-1] == "frontends"]
        tables = [name for name in names if name[:-1] == "tables"]
        others = [name for name in names if name not in frontends and name not in tables]
        for name in tables:
            if self.deletes.get(name):
                yield Step(name, {}, list(self.deletes[name]))
        for name in (*others, *tables):
            if self.upserts.get(name):
                yield Step(name, self.upserts[name], [])
        for name in frontends:
            if self.upserts.get(name) or self.deletes.get(name):
                yield Step(name, self.upserts.get(name, {}), list(self.deletes.get(name, ())))
        for name in others:
            if self.deletes.get(name):
                yield Step(name, {}, list(self.deletes[name]))

    def together(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return how many elements each map holds at most while this is carried out. sizes: afterwards."""
        return {
            name: count + (0 if name[:-1] == "tables" else len(self.deletes.get(name, ())))
            for name, count in sizes.items()
        }


def diff_maps(wanted: Mapping[str, dict[bytes, bytes]], live: Mapping[str, dict[bytes, bytes]]) -> MapPlan:
    """Return the plan that turns what the maps hold into what is wanted; maps absent from `wanted` are left alone."""
    plan = MapPlan()
    for name, elements in wanted.items():
        held = live.get(name, {})
        if not held:
            if elements:
                plan.upserts[name] = dict(elements)
            continue
        for key, value in elements.items():
            if held.get(key) != value:
                plan.put(name, key, value)
        for key in held:
            if key not in elements:
                plan.remove(name, key)
    return plan
