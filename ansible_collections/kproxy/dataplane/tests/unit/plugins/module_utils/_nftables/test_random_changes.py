"""Whatever changes, in whatever order: plans that a strict kernel takes, leading where a fresh plan leads."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import ABSENT, FoundTable, Held
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.planner import Planner
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.programmed import programmed
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Key, SetName
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import upserts
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.random_objects import (
    RandomChanges,
    settings,
)

Elements = dict[SetName, dict[Key, Held]]


class StrictKernel:
    """Elements by set. Refuses what nf_tables refuses: deleting what is not there, adding what is there already."""

    def __init__(self) -> None:
        self.elements: Elements = {}

    def commit(self, plan: Plan) -> None:
        for set_name, keys in plan.transaction.deletes.items():
            held = self.elements.setdefault(set_name, {})
            for key in keys:
                assert key in held, ("deleted twice, or never added", set_name, key)
                del held[key]
        for set_name, elements in plan.transaction.adds.items():
            held = self.elements.setdefault(set_name, {})
            for key, value, comment in elements:
                assert key not in held, ("added twice", set_name, key)
                held[key] = (value, comment or "") if isinstance(value, str) else value
        for line in plan.retired.splitlines():
            words = line.split()
            if words[:1] == ["delete"] and words[1] in ("set", "map"):
                self.elements.pop(SetName(4 if words[2] == "ip" else 6, words[4]), None)

    def found(self, chains: Mapping[int, set[str]]) -> Mapping[int, FoundTable]:
        """What a new process reads; somebody altered the structure, so that it is written anew around the elements."""
        return {
            family: FoundTable(
                True,
                frozenset(chains[family]),
                frozenset(name.name for name in self.elements if name.family == family),
                {name: dict(held) for name, held in self.elements.items() if name.family == family},
                "digest",
                "layout %d, made elsewhere" % names.LAYOUT,
            )
            for family in (4, 6)
        }


def _meaning(elements: Elements) -> dict[SetName, set[tuple[Key, Held]]]:
    """Elements without the order of slots, which history decides: an endpoint map counts as its values per prefix."""
    shown: dict[SetName, set[tuple[Key, Held]]] = {}
    for set_name, held in elements.items():
        if held:
            slots = set_name.name.startswith("endpoints-") or set_name.name.startswith("node-port-endpoints-")
            shown[set_name] = {(b"" if slots else key, value) for key, value in held.items()}
    return shown


@pytest.mark.parametrize("seed", range(6))
def test_plans_lead_where_a_fresh_plan_leads(seed: int) -> None:
    story, table, planner, kernel = RandomChanges(seed), ServiceTable(settings(seed)), Planner((4, 6)), StrictKernel()
    first = planner.plan_all(table, {4: ABSENT, 6: ABSENT})
    kernel.commit(first)
    planner.accept(first)
    for number in range(25):
        changed, gone = story.batch()
        delta = table.apply([*upserts(*changed), *(Delete(kind, "shop", name) for kind, name in gone)])
        plan = planner.plan(table, delta)
        kernel.commit(plan)
        planner.accept(plan)
        assert {name: held for name, held in planner.mirror.elements.items() if held} == {
            name: held for name, held in kernel.elements.items() if held
        }
        fresh_kernel, fresh = StrictKernel(), Planner((4, 6))
        fresh_kernel.commit(fresh.plan_all(table, {4: ABSENT, 6: ABSENT}))
        assert _meaning(kernel.elements) == _meaning(fresh_kernel.elements)
        assert programmed(planner.mirror, (4, 6)).keys() == table.frontends.keys()
        for key, held in kernel.elements.items():
            for value in held.values():
                if isinstance(value, tuple) and value[0].startswith("goto "):
                    assert value[0][5:] in planner._chains[key.family], (key, value)
        if number % 8 == 0:  # a restart reads the elements back and finds nothing to write
            found, planner = kernel.found(planner._chains), Planner((4, 6))
            again = planner.plan_all(table, found)
            assert again.transaction.size == 0, again.transaction
            planner.accept(again)
