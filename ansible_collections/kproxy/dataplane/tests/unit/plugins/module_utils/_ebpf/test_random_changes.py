"""Whatever changes, in whatever order: the maps hold what a fresh start would write, and no frontend is ever half."""

from __future__ import annotations

from array import array

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import TABLES, Books
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.states import read_rows
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import upserts
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.random_objects import (
    RandomChanges,
    settings,
)

Maps = dict[str, dict[bytes, bytes]]
OWNED = ("frontends", "slots", "members", "ranges", "cluster_ips", "tables")


class StrictMaps:
    """Maps that refuse to delete what is not there, and check after every write that no frontend lacks a slot."""

    def __init__(self) -> None:
        self.maps: Maps = {f"{name}{family}": {} for family in (4, 6) for name in OWNED}

    def write(self, plan: MapPlan) -> None:
        for step in plan.steps():
            held = self.maps[step.map]
            for key, value in step.upserts.items():
                held[key] = value
                if step.map.startswith("frontends"):
                    self._check(step.map, value)
            for key in step.deletes:
                assert key in held, ("deleted twice, or never written", step.map, key)
                del held[key]
            if step.map.startswith("slots"):
                for value in self.maps["frontends" + step.map[-1]].values():
                    self._check("frontends" + step.map[-1], value)

    def _check(self, name: str, data: bytes) -> None:
        value = layout.FrontendValue.unpack(data)
        assert bool(value.only) is (value.count_cluster == 1)
        for local_only, count in ((False, value.count_cluster), (True, value.count_local)):
            for slot in range(count):
                key = layout.slot_key(layout.set_number(value.service, local_only), slot)
                assert key in self.maps["slots" + name[-1]], ("a frontend refers to a slot that is not there", value)


def _meaning(maps: Maps) -> dict[object, object]:
    """What the maps say, without the numbers that history decides and without the order of slots."""
    said: dict[object, object] = {}
    for key, row in read_rows(maps).items():
        said[key] = (sorted(row.endpoints), sorted(row.local_endpoints))
    for name in ("frontends4", "frontends6"):
        for raw_key, data in maps[name].items():
            value = layout.FrontendValue.unpack(data)
            said[name, raw_key] = value._replace(service=0)
            if value.only:
                slots = maps["slots" + name[-1]]
                assert value.only == slots[layout.slot_key(layout.set_number(value.service, False), 0)]
            said["tables", name, raw_key] = [_choices(maps, name[-1], value.service, local) for local in (False, True)]
    return said


def _choices(maps: Maps, family: str, service: int, local_only: bool) -> list[bytes]:
    """Return the endpoint that each entry of a set's Maglev table leads to, nothing if it has none."""
    number = layout.set_number(service, local_only)
    table = maps["tables" + family].get(layout.table_key(number), bytes(layout.TABLE_HEAD))
    slots = maps["slots" + family]
    return [slots[layout.slot_key(number, slot)] for slot in array("H", table[layout.TABLE_HEAD :])]


def _without_tables(maps: Maps) -> Maps:
    return {name: held for name, held in maps.items() if name not in TABLES}


def _as_read(maps: Maps) -> Maps:
    """What a start reads: of tables the digest alone."""
    digests = {name: {key: value[: layout.TABLE_HEAD] for key, value in maps[name].items()} for name in TABLES}
    return {**maps, **digests}


@pytest.mark.parametrize(("seed", "table_size"), [*((seed, 0) for seed in range(6)), (6, 251), (7, 509)])
def test_maps_hold_what_a_fresh_start_would_write(seed: int, table_size: int) -> None:
    story, table, books, kernel = RandomChanges(seed), ServiceTable(settings(seed)), Books(table_size), StrictMaps()
    kernel.write(books.adopt(table, kernel.maps, 1))
    for number in range(25):
        changed, gone = story.batch()
        delta = table.apply([*upserts(*changed), *(Delete(kind, "shop", name) for kind, name in gone)])
        replan = books.replan(table, delta)
        kernel.write(replan.plan)
        books.accept(replan)
        assert books.wanted() == _without_tables(kernel.maps)
        fresh, fresh_kernel = Books(table_size), StrictMaps()
        fresh_kernel.write(fresh.adopt(table, fresh_kernel.maps, 1))
        assert {name: len(held) for name, held in kernel.maps.items()} == {
            name: len(held) for name, held in fresh_kernel.maps.items()
        }
        assert _meaning(kernel.maps) == _meaning(fresh_kernel.maps)
        if number % 8 == 0:  # a restart adopts the maps and finds nothing to write
            next_number, books = books.numbers.next, Books(table_size)
            again = books.adopt(table, _as_read(kernel.maps), next_number)
            assert not any([*again.upserts.values(), *again.deletes.values()]), again
