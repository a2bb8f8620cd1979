"""Plans: the smallest change, nothing for nothing, and the same result from wherever the kernel starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import structure
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import (
    ABSENT,
    FoundTable,
    Mirror,
    about_text,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.planner import Planner
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.programmed import programmed
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)

NOTHING_THERE = {4: ABSENT, 6: ABSENT}
BUSY: dict[str, Any] = {
    "type": "LoadBalancer",
    "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
    "externalIPs": ["198.51.100.9"],
    "ingress": ["198.51.100.10"],
    "loadBalancerSourceRanges": ["203.0.113.0/24", "203.0.113.128/25"],
}


class World:
    """A service table and a planner whose plans all succeed, on a kernel that is a mirror."""

    def __init__(self, *manifests: dict[str, Any]) -> None:
        self.table = ServiceTable(config())
        self.table.apply(upserts(*manifests))
        self.planner = Planner((4, 6))
        self.first = self.planner.plan_all(self.table, NOTHING_THERE)
        self.planner.accept(self.first)

    def change(self, *manifests: dict[str, Any]) -> Plan:
        plan = self.planner.plan(self.table, self.table.apply(upserts(*manifests)))
        self.planner.accept(plan)
        return plan

    def delete(self, kind: str, name: str) -> Plan:
        plan = self.planner.plan(self.table, self.table.apply([Delete(kind, "shop", name)]))
        self.planner.accept(plan)
        return plan

    def found(self) -> Mapping[int, FoundTable]:
        """The kernel as it would be read back: untouched structure, the mirror's elements."""
        found = {}
        for family in (4, 6):
            elements = {
                name: dict(held) for name, held in self.planner.mirror.elements.items() if name.family == family
            }
            chains = frozenset(self.planner._chains[family])
            sets = frozenset(name.name for name in elements)
            about = about_text(self.planner.fingerprint(family), "digest")
            found[family] = FoundTable(True, chains, sets, elements, "digest", about)
        return found

    def readopt(self, planner: Planner | None = None) -> Plan:
        return (planner or Planner((4, 6))).plan_all(self.table, self.found())


def sizes(plan: Plan) -> tuple[int, int]:
    transaction = plan.transaction
    return sum(map(len, transaction.deletes.values())), sum(map(len, transaction.adds.values()))


WORLDS = [
    ("one service", [service(), endpoints("10.244.1.5", "10.244.1.6@n1")]),
    ("no endpoint", [service()]),
    ("all kinds of frontends", [service(**BUSY), endpoints("10.244.1.5", "10.244.1.6@n1")]),
    ("local policy", [service(**BUSY, externalTrafficPolicy="Local"), endpoints("10.244.1.5", "10.244.1.6@n1")]),
    ("local policy, nothing here", [service(**BUSY, externalTrafficPolicy="Local"), endpoints("10.244.1.5")]),
    (
        "affinity with both sets",
        [
            service(**BUSY, externalTrafficPolicy="Local", sessionAffinity="ClientIP"),
            endpoints("10.244.1.5", "10.244.1.6@n1"),
        ],
    ),
    (
        "dual stack",
        [
            service(
                clusterIP="10.96.0.5",
                clusterIPs=["10.96.0.5", "fd00:10:96::5"],
                ipFamilies=["IPv4", "IPv6"],
                sessionAffinity="ClientIP",
            ),
            endpoints("10.244.1.5"),
            endpoints("fd00:10:244:1::5", name="web-6"),
        ],
    ),
    (
        "two services share an endpoint of this node",
        [
            service(),
            service("twin", clusterIP="10.96.0.6"),
            endpoints("10.244.1.6@n1"),
            endpoints("10.244.1.6@n1", service="twin"),
        ],
    ),
]
worlds = pytest.mark.parametrize("manifests", [row[1] for row in WORLDS], ids=[str(row[0]) for row in WORLDS])


@worlds
def test_a_second_plan_is_empty(manifests: list[dict[str, Any]]) -> None:
    world = World(*manifests)
    assert not world.first.empty
    assert world.change(*manifests).empty
    assert world.readopt().empty


@worlds
def test_what_is_deleted_leaves_no_element(manifests: list[dict[str, Any]]) -> None:
    world = World(*manifests)
    for name in ("web", "twin"):
        world.delete("Service", name)
    assert {name: held for name, held in world.planner.mirror.elements.items() if held} == {}


@worlds
def test_one_change_at_a_time_leads_where_all_at_once_does(manifests: list[dict[str, Any]]) -> None:
    at_once, stepwise = World(*manifests), World()
    for manifest in manifests:
        stepwise.change(manifest)
    assert programmed(stepwise.planner.mirror, (4, 6)) == programmed(at_once.planner.mirror, (4, 6))
    assert at_once.readopt().empty
    assert stepwise.readopt().empty


@worlds
def test_a_strayed_kernel_is_brought_back(manifests: list[dict[str, Any]]) -> None:
    world = World(*manifests)
    found = world.found()
    wanted = {name: dict(held) for name, held in world.planner.mirror.elements.items() if held}
    for table in found.values():
        for held in table.elements.values():
            for key in list(held)[::2]:
                del held[key]
        for name, held in table.elements.items():
            if name.name == "services":
                held[bytes([10, 96, 99, 99, 6, 0, 0, 0, 0, 80, 0, 0])] = ("goto pick-1", "shop/ghost")
    planner = Planner((4, 6))
    planner.accept(planner.plan_all(world.table, found))
    repaired = {name: held for name, held in planner.mirror.elements.items() if held}
    assert {name: set(held) for name, held in repaired.items()} == {name: set(held) for name, held in wanted.items()}


def test_one_more_endpoint_is_one_slot_and_one_verdict() -> None:
    world = World(service(), endpoints("10.244.1.5", "10.244.1.6"))
    plan = world.change(endpoints("10.244.1.5", "10.244.1.6", "10.244.1.7"))
    assert sizes(plan) == (1, 2)
    assert sizes(world.change(endpoints("10.244.1.5", "10.244.1.7"))) == (3, 2)


def test_the_number_of_chains_follows_the_counts_of_endpoints_not_the_number_of_services() -> None:
    def chains(services: int) -> int:
        manifests = []
        for number in range(services):
            manifests.append(service(f"s{number}", clusterIP=f"10.96.{number // 250}.{number % 250 + 1}"))
            manifests.append(endpoints("10.244.1.5", "10.244.1.6", service=f"s{number}", name=f"s{number}"))
        return len(World(*manifests).planner._chains[4])

    assert chains(1) == chains(500)


def test_structure_that_somebody_altered_is_made_anew_and_elements_stay() -> None:
    world = World(service(), endpoints("10.244.1.5"))
    found = {
        family: table._replace(digest="altered", chains=table.chains | {"strange"})
        for family, table in world.found().items()
    }
    plan = Planner((4, 6)).plan_all(world.table, found)
    assert plan.rebuilt == {4, 6}
    assert "delete chain ip kproxy strange" in plan.retired
    assert plan.transaction.size == 0
    assert "delete table" not in plan.transaction.structure


def test_another_layout_begins_anew() -> None:
    world = World(service(), endpoints("10.244.1.5"))
    found = {family: table._replace(about="layout 0, made from x") for family, table in world.found().items()}
    plan = Planner((4, 6)).plan_all(world.table, found)
    assert plan.transaction.structure.startswith("delete table ip kproxy\n")
    assert sizes(plan) == sizes(world.first)


def test_affinity_that_ends_takes_its_objects_along() -> None:
    world = World(service(sessionAffinity="ClientIP"), endpoints("10.244.1.5"))
    plan = world.change(service())
    assert "delete chain ip kproxy learn-" in plan.retired
    assert "delete set ip kproxy pins-" in plan.retired
    assert world.readopt().empty


def test_a_new_timeout_keeps_the_pins() -> None:
    world = World(service(sessionAffinity="ClientIP"), endpoints("10.244.1.5"))
    sticky: dict[str, Any] = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
    }
    plan = world.change(service(**sticky))
    assert "timeout 60s" in plan.transaction.structure
    assert plan.retired == ""


def test_an_endpoint_that_leaves_has_its_pins_looked_through() -> None:
    world = World(service(sessionAffinity="ClientIP"), endpoints("10.244.1.5", "10.244.1.6"))
    assert world.change(endpoints("10.244.1.5", "10.244.1.6", "10.244.1.7")).pins == []
    assert [pins.members.family for pins in world.change(endpoints("10.244.1.5")).pins] == [4]


def test_an_endpoint_that_comes_into_the_other_set_brings_its_pins() -> None:
    sticky: dict[str, Any] = {"sessionAffinity": "ClientIP", "externalIPs": ["198.51.100.9"]}
    world = World(service(**sticky), endpoints("10.244.1.5@n1", "10.244.2.5"))
    assert world.change(endpoints("10.244.1.5@n1", "10.244.1.6@n1", "10.244.2.5")).carried == []
    plan = world.change(service(**sticky, externalTrafficPolicy="Local"))
    (carried,) = plan.carried
    assert [name.name.startswith("pins-local-") for name in (*carried.source.maps, *carried.target.maps)] == [
        False,
        True,
    ]
    assert len(carried.endpoints) == 2, "those of this node"
    assert world.change(endpoints("10.244.1.5@n1", "10.244.1.7@n1")).carried == [], "new to both"
    assert world.change(service(**sticky)).carried == []
    assert world.change(service(**{**sticky, "sessionAffinity": "None"})).carried == []
    assert world.change(service(**sticky, externalTrafficPolicy="Local")).carried == []


def test_a_restart_after_a_policy_has_changed_carries_pins() -> None:
    sticky: dict[str, Any] = {"sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local"}
    world = World(service(**sticky), endpoints("10.244.1.5@n1"))
    found = world.found()
    world.table.apply(upserts(service(sessionAffinity="ClientIP")))
    (carried,) = Planner((4, 6)).plan_all(world.table, found).carried
    assert carried.source.maps[0].name.startswith("pins-local-")


def test_new_rules_of_the_node_rewrite_chains_and_no_element() -> None:
    world = World(service(), endpoints("10.244.1.5"))
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]},
    }
    plan = world.change(node)
    assert plan.transaction.size == 0
    assert "add element ip kproxy node-port-addresses { 192.0.2.11/32 }" in plan.transaction.structure


@pytest.mark.parametrize("name", ["pick-0", "pick-", "pick-x", "pick-local", "node-port", "mark-pick-1", "refuse"])
def test_chains_that_pick_are_known_by_their_name(name: str) -> None:
    assert not structure.is_pick_chain(name)


def test_a_copy_of_the_mirror_is_on_its_own() -> None:
    world = World(service(), endpoints("10.244.1.5"))
    copy = world.planner.mirror.copy()
    copy.accept(world.delete("Service", "web").transaction)
    assert programmed(copy, (4, 6)) == {}
    assert isinstance(copy, Mirror)
