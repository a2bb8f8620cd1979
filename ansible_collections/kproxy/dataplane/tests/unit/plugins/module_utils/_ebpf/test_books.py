# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From the service table to map writes: numbers, slots, order, restart."""

from __future__ import annotations

import ipaddress
import random
from array import array
from collections.abc import Iterable
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import TABLES, Books
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.capacity import CapacityError, check_capacity
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.entries import arrange
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.numbers import Numbers
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.states import read_rows
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey, ServicePortName
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Delete, Upsert, parse

Live = dict[str, dict[bytes, bytes]]
WEB = FrontendKey(4, ipaddress.ip_address("10.96.0.1").packed, 6, 80)


def service(name: str = "web", ip: str = "10.96.0.1", protocol: str = "TCP", **spec: Any) -> Change:
    obj = parse({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80, "protocol": protocol}], **spec},
    })  # fmt: skip
    assert obj is not None
    return Upsert(obj)


def slice_of(ips: Iterable[str], name: str = "web", protocol: str = "TCP") -> Change:
    obj = parse({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "shop", "name": name + "-1", "labels": {"kubernetes.io/service-name": name}},
        "ports": [{"name": "", "port": 8080, "protocol": protocol}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}, "nodeName": "n2"} for ip in ips],
    })  # fmt: skip
    assert obj is not None
    return Upsert(obj)


def new_table() -> ServiceTable:
    return ServiceTable(ProxyConfig.from_mapping({"nodeName": "n1", "clusterCIDR": "10.244.0.0/16"}))


class Kernel:
    """Maps as dictionaries, that check at every write that no frontend refers to a slot which is not there."""

    def __init__(self) -> None:
        self.maps: Live = {
            f"{name}{family}": {}
            for family in (4, 6)
            for name in ("frontends", "slots", "members", "ranges", "cluster_ips", "tables")
        }

    def write(self, plan: MapPlan) -> None:
        for step in plan.steps():
            for key, value in step.upserts.items():
                self.maps[step.map][key] = value
                self.check()
            for key in step.deletes:
                del self.maps[step.map][key]
                self.check()

    def check(self) -> None:
        for data in self.maps["frontends4"].values():
            value = layout.FrontendValue.unpack(data)
            assert bool(value.only) is (value.count_cluster == 1)
            for local_only, count in ((False, value.count_cluster), (True, value.count_local)):
                for slot in range(count):
                    assert layout.slot_key(layout.set_number(value.service, local_only), slot) in self.maps["slots4"]
        for choices in self.choices().values():
            assert None not in choices

    def choices(self) -> dict[bytes, list[bytes | None]]:
        """Return, by set, the endpoint that each entry of its Maglev table leads to."""
        return {
            key: [
                self.maps["slots4"].get(layout.slot_key(int.from_bytes(key, "little"), slot))
                for slot in array("H", value[layout.TABLE_HEAD :])
            ]
            for key, value in self.maps["tables4"].items()
        }

    def live(self) -> Live:
        """Return what a start reads: of the tables only their digests."""
        return {
            name: {key: value[: layout.TABLE_HEAD] for key, value in held.items()} if name in TABLES else dict(held)
            for name, held in self.maps.items()
        }

    def endpoints(self, key: FrontendKey) -> list[str]:
        return sorted(str(ipaddress.ip_address(ip)) for ip, _port in read_rows(self.maps)[key].endpoints)


class Node:
    """A table, books and maps, changed step by step."""

    def __init__(self, table_size: int = 0) -> None:
        self.table, self.books, self.kernel = new_table(), Books(table_size), Kernel()
        self.kernel.write(self.books.adopt(self.table, self.kernel.maps, 1))

    def change(self, *changes: Change) -> MapPlan:
        replan = self.books.replan(self.table, self.table.apply(changes))
        self.kernel.write(replan.plan)
        self.books.accept(replan)
        assert self.books.wanted() == {name: held for name, held in self.kernel.maps.items() if name not in TABLES}
        sizes = self.books.sizes_after(self.books.replan(self.table, self.table.apply([])))
        assert {name: count for name, count in sizes.items() if count} == {
            name: len(held) for name, held in self.kernel.maps.items() if held
        }
        return replan.plan


def test_arrange_moves_as_little_as_possible() -> None:
    chooser = random.Random(1)
    names = [bytes([number]) for number in range(20)]
    for _round in range(1000):
        current = chooser.sample(names, chooser.randint(0, 12))
        wanted = chooser.sample(names, chooser.randint(0, 12))
        slots = arrange(current, wanted)
        assert sorted(slots) == sorted(wanted)
        moved = sum(index >= len(current) or current[index] != held for index, held in enumerate(slots))
        lost = sum(held not in wanted for held in current[: len(wanted)])
        assert moved == max(len(set(wanted) - set(current)), lost)


def test_one_endpoint_added_is_one_slot_and_the_frontend() -> None:
    node = Node()
    node.change(service(), slice_of(["10.244.2.1", "10.244.2.2"]))
    plan = node.change(slice_of(["10.244.2.1", "10.244.2.2", "10.244.2.3"]))
    assert {name: len(held) for name, held in plan.upserts.items() if held} == {"slots4": 1, "frontends4": 1}
    assert not any(plan.deletes.values())
    assert node.kernel.endpoints(WEB) == ["10.244.2.1", "10.244.2.2", "10.244.2.3"]


def test_one_endpoint_removed_in_the_middle_moves_the_last() -> None:
    node = Node()
    node.change(service(), slice_of(["10.244.2.1", "10.244.2.2", "10.244.2.3"]))
    plan = node.change(slice_of(["10.244.2.1", "10.244.2.3"]))
    assert plan.size == 3
    assert node.kernel.endpoints(WEB) == ["10.244.2.1", "10.244.2.3"]


def test_nothing_changed_is_an_empty_plan() -> None:
    node = Node()
    node.change(service(), slice_of(["10.244.2.1"]))
    assert node.change(service(), slice_of(["10.244.2.1"])).empty


STORY: list[list[Change]] = [
    [service(), slice_of(["10.244.2.1"])],
    [service("db", "10.96.0.2", type="NodePort"), slice_of(["10.244.3.1", "10.244.3.2"], "db")],
    [slice_of(["10.244.2.%d" % number for number in range(1, 9)])],
    [slice_of(["10.244.2.%d" % number for number in range(4, 7)])],
    [service(sessionAffinity="ClientIP")],
    [slice_of([])],
    [slice_of(["10.244.2.9"]), slice_of([], "db")],
    [Delete("Service", "shop", "web")],
    [Delete("Service", "shop", "db"), Delete("EndpointSlice", "shop", "db-1")],
]


@pytest.mark.parametrize("table_size", [0, 251])
def test_no_frontend_ever_dangles(table_size: int) -> None:
    node = Node(table_size)
    for changes in STORY:
        node.change(*changes)
    assert not any(node.kernel.maps.values())


@pytest.mark.parametrize("table_size", [0, 251])
def test_a_restart_at_any_point_writes_nothing(table_size: int) -> None:
    node = Node(table_size)
    for changes in STORY:
        node.change(*changes)
        assert Books(table_size).adopt(node.table, node.kernel.live(), node.books.numbers.next).empty


def external(name: str = "web", ip: str = "10.96.0.1", node_port: int = 30080, **spec: Any) -> Change:
    ports = [{"port": 80, "protocol": "TCP", "nodePort": node_port}]
    return service(name, ip, **{"type": "NodePort", "ports": ports, **spec})


def test_only_what_is_dialled_from_outside_has_a_table() -> None:
    node = Node(251)
    node.change(service(), slice_of(["10.244.2.1", "10.244.2.2"]))
    assert not node.kernel.maps["tables4"]
    node.change(external("db", "10.96.0.2"), slice_of(["10.244.3.1", "10.244.3.2"], "db"))
    assert len(node.kernel.maps["tables4"]) == 1
    flags = {layout.unpack_frontend_key(key)[0]: layout.FrontendValue.unpack(value).flags & layout.FRONTEND_MAGLEV
             for key, value in node.kernel.maps["frontends4"].items()}  # fmt: skip
    assert flags == {WEB.ip: 0, ipaddress.ip_address("10.96.0.2").packed: 0, b"": layout.FRONTEND_MAGLEV}


@pytest.mark.parametrize(
    ("ips", "tables"),
    [
        pytest.param([], 0, id="none"),
        pytest.param(["10.244.2.1"], 0, id="no choice"),
        pytest.param(["10.244.2.1", "10.244.2.2"], 1, id="two"),
        pytest.param([f"10.244.2.{number}" for number in range(251)], 1, id="one entry each"),
        pytest.param([f"10.244.2.{number}" for number in range(252)], 0, id="more than entries"),
    ],
)
def test_sets_that_have_a_table(ips: list[str], tables: int) -> None:
    node = Node(251)
    node.change(external(), slice_of(ips))
    assert len(node.kernel.maps["tables4"]) == tables


def test_only_the_service_that_changed_gets_a_new_table() -> None:
    node = Node(251)
    node.change(
        external(),
        slice_of(["10.244.2.1", "10.244.2.2"]),
        external("db", "10.96.0.2", 30081),
        slice_of(["10.244.3.1", "10.244.3.2"], "db"),
    )
    before = dict(node.kernel.maps["tables4"])
    plan = node.change(slice_of(["10.244.2.1", "10.244.2.2", "10.244.2.3"]))
    assert len(plan.upserts["tables4"]) == 1
    assert sum(node.kernel.maps["tables4"][key] == value for key, value in before.items()) == 1
    assert "tables4" not in node.change(external(sessionAffinity="ClientIP")).upserts


CHANGES = [
    pytest.param(range(1, 9), range(1, 10), id="one comes"),
    pytest.param(range(1, 9), [1, 2, 4, 5, 6, 7, 8], id="one in the middle goes"),
    pytest.param(range(1, 9), range(2, 9), id="the first goes"),
    pytest.param(range(1, 9), [1, 2, 3, 20, 5, 6, 7, 8], id="one is replaced"),
    pytest.param(range(1, 9), [2, 30, 4, 31], id="many go, some come"),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_at_every_write_whoever_stays_keeps_its_entries_or_gives_them_to_who_will_have_them(
    before: Iterable[int], after: Iterable[int]
) -> None:
    node = Node(1021)
    node.change(external(), slice_of([f"10.244.2.{number}" for number in before]))
    replan = node.books.replan(node.table, node.table.apply([slice_of([f"10.244.2.{number}" for number in after])]))
    (old,) = node.kernel.choices().values()
    staying = {layout.endpoint(bytes([10, 244, 2, number]), 8080) for number in set(before) & set(after)}
    seen: list[list[bytes | None]] = []
    for step in replan.plan.steps():
        for key, value in step.upserts.items():
            node.kernel.maps[step.map][key] = value
            seen.append(*node.kernel.choices().values())
        for key in step.deletes:
            del node.kernel.maps[step.map][key]
            seen.append(*node.kernel.choices().values())
    new = seen[-1]
    for choices in seen:
        assert all(now in (was, then) for was, now, then in zip(old, choices, new) if was in staying)


def test_two_nodes_with_different_pasts_choose_alike() -> None:
    first, second = Node(1021), Node(1021)
    first.change(external(), slice_of(["10.244.2.1", "10.244.2.2", "10.244.2.3"]))
    second.change(external(), slice_of(["10.244.2.9", "10.244.2.3", "10.244.2.2"]))
    second.change(slice_of(["10.244.2.3", "10.244.2.1"]))
    second.change(slice_of(["10.244.2.3", "10.244.2.2", "10.244.2.1"]))
    assert first.kernel.maps["slots4"] != second.kernel.maps["slots4"]
    assert [*first.kernel.choices().values()] == [*second.kernel.choices().values()]


@pytest.mark.parametrize("size", [0, 509])
def test_another_size_replaces_every_table(size: int) -> None:
    node = Node(251)
    node.change(external(), slice_of(["10.244.2.1", "10.244.2.2"]))
    plan = Books(size).adopt(node.table, node.kernel.live(), node.books.numbers.next)
    assert len(plan.upserts.get("tables4", ())) == (1 if size else 0)
    assert len(plan.deletes.get("tables4", ())) == (0 if size else 1)


def test_sctp_is_named_and_left_to_nftables() -> None:
    node = Node()
    node.change(service(protocol="SCTP"), slice_of(["10.244.2.1"], protocol="SCTP"))
    assert not node.kernel.maps["slots4"]
    (data,) = node.kernel.maps["frontends4"].values()
    assert layout.FrontendValue.unpack(data).answers == (layout.ELSEWHERE,) * 3
    assert len(node.kernel.maps["cluster_ips4"]) == 1


def test_a_freed_number_is_not_given_away_at_once() -> None:
    node = Node()
    node.change(service(), slice_of(["10.244.2.1"]))
    number = node.books.numbers.of(ServicePortName("shop", "web", "", 6))
    node.change(Delete("Service", "shop", "web"))
    node.change(service("db", "10.96.0.2"), slice_of(["10.244.3.1"], "db"))
    assert node.books.numbers.of(ServicePortName("shop", "db", "", 6)) > number


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        pytest.param([(5, "a"), (5, "a")], {"a": 5}, id="shared by the frontends of one port"),
        pytest.param([(5, "a"), (5, "b")], {}, id="collision: both get new ones"),
        pytest.param([(5, "a"), (5, None)], {"a": 5}, id="an address that is wanted no more"),
        pytest.param([(5, "a"), (5, None), (5, "b")], {}, id="a collision beside one"),
        pytest.param([(5, None)], {}, id="held by nobody that is wanted"),
        pytest.param([(5, "a"), (6, "a")], {"a": 5}, id="two numbers: the lower"),
        pytest.param([(0, "a")], {}, id="zero is no number"),
    ],
)
def test_adopting_numbers(found: list[tuple[int, str | None]], kept: dict[str, int]) -> None:
    names = {text: ServicePortName("shop", text, "", 6) for text in "ab"}
    numbers = Numbers()
    numbers.adopt([(number, names[text] if text else None) for number, text in found])
    for text, name in names.items():
        assert numbers.known(name) is (text in kept)
        used = {number for number, _text in found}
        assert numbers.of(name) == kept[text] if text in kept else numbers.of(name) not in used


def test_an_address_taken_from_a_service_while_nobody_looks_is_all_that_goes() -> None:
    node = Node()
    node.change(
        service(sessionAffinity="ClientIP", externalIPs=["198.51.100.7"]), slice_of(["10.244.2.1", "10.244.2.2"])
    )
    number = node.books.numbers.of(ServicePortName("shop", "web", "", 6))
    node.table.apply([service(sessionAffinity="ClientIP", externalIPs=[])])
    books = Books()
    plan = books.adopt(node.table, node.kernel.live(), node.books.numbers.next)
    # Pins stand under the number.
    assert books.numbers.of(ServicePortName("shop", "web", "", 6)) == number
    gone = FrontendKey(4, ipaddress.ip_address("198.51.100.7").packed, 6, 80)
    assert (plan.upserts, plan.deletes) == ({}, {"frontends4": {layout.frontend_key(*gone): None}})
    node.kernel.write(plan)


def test_case_22_a_collision_is_undone_without_a_wrong_moment() -> None:
    node = Node()
    node.change(
        service(), slice_of(["10.244.2.1", "10.244.2.2"]), service("db", "10.96.0.2"), slice_of(["10.244.3.1"], "db")
    )
    ours = {key: {ip for ip, _port in row.endpoints} for key, row in read_rows(node.kernel.maps).items()}
    stolen = layout.FrontendValue.unpack(node.kernel.maps["frontends4"][layout.frontend_key(*WEB)])
    other = FrontendKey(4, ipaddress.ip_address("10.96.0.2").packed, 6, 80)
    value = layout.FrontendValue.unpack(node.kernel.maps["frontends4"][layout.frontend_key(*other)])
    node.kernel.maps["frontends4"][layout.frontend_key(*other)] = value._replace(service=stolen.service).pack(4)
    plan = Books().adopt(node.table, node.kernel.maps, 1)
    changed = set(plan.upserts["frontends4"])
    assert changed == {layout.frontend_key(*WEB), layout.frontend_key(*other)}
    for step in plan.steps():
        for key, data in step.upserts.items():
            node.kernel.maps[step.map][key] = data
            if step.map == "frontends4":
                for frontend, row in read_rows(node.kernel.maps).items():
                    if layout.frontend_key(*frontend) in changed and frontend.ip == key[:4]:
                        assert {ip for ip, _port in row.endpoints} == ours[frontend]
        for key in step.deletes:
            del node.kernel.maps[step.map][key]
    assert {key: {ip for ip, _port in row.endpoints} for key, row in read_rows(node.kernel.maps).items()} == ours


def test_capacity_is_refused_as_a_whole_and_named() -> None:
    with pytest.raises(CapacityError, match="map frontends4 needs 11 entries and has room for 10; map slots4"):
        check_capacity({"frontends4": 11, "slots4": 200, "ranges4": 1}, {"frontends4": 10, "slots4": 100, "ranges4": 1})
