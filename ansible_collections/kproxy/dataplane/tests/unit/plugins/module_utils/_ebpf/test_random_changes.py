"""Whatever changes, in whatever order: the maps hold what a fresh start would write, and no frontend is ever half."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import Books
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
OWNED = ("frontends", "slots", "members", "ranges", "cluster_ips")


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
            said[name, raw_key] = layout.FrontendValue.unpack(data)._replace(service=0)
    return said


@pytest.mark.parametrize("seed", range(6))
def test_maps_hold_what_a_fresh_start_would_write(seed: int) -> None:
    story, table, books, kernel = RandomChanges(seed), ServiceTable(settings(seed)), Books(), StrictMaps()
    kernel.write(books.adopt(table, kernel.maps, 1))
    for number in range(25):
        changed, gone = story.batch()
        delta = table.apply([*upserts(*changed), *(Delete(kind, "shop", name) for kind, name in gone)])
        replan = books.replan(table, delta)
        kernel.write(replan.plan)
        books.accept(replan)
        assert books.wanted() == kernel.maps
        fresh, fresh_kernel = Books(), StrictMaps()
        fresh_kernel.write(fresh.adopt(table, fresh_kernel.maps, 1))
        assert {name: len(held) for name, held in kernel.maps.items()} == {
            name: len(held) for name, held in fresh_kernel.maps.items()
        }
        assert _meaning(kernel.maps) == _meaning(fresh_kernel.maps)
        if number % 8 == 0:  # a restart adopts the maps and finds nothing to write
            next_number, books = books.numbers.next, Books()
            again = books.adopt(table, kernel.maps, next_number)
            assert not any([*again.upserts.values(), *again.deletes.values()]), again
