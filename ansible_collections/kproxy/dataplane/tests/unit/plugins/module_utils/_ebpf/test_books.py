# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From the service table to map writes: numbers, slots, order, restart."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterable
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import Books
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
        self.maps: Live = {f"{name}{family}": {} for family in (4, 6) for name in (
            "frontends", "slots", "members", "ranges", "cluster_ips")}

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
            for local_only, count in ((False, value.count_cluster), (True, value.count_local)):
                for slot in range(count):
                    assert layout.slot_key(layout.set_number(value.service, local_only), slot) in self.maps["slots4"]

    def endpoints(self, key: FrontendKey) -> list[str]:
        return sorted(str(ipaddress.ip_address(ip)) for ip, _port in read_rows(self.maps)[key].endpoints)


class Node:
    """A table, books and maps, changed step by step."""

    def __init__(self) -> None:
        self.table, self.books, self.kernel = new_table(), Books(), Kernel()
        self.kernel.write(self.books.adopt(self.table, self.kernel.maps, 1))

    def change(self, *changes: Change) -> MapPlan:
        replan = self.books.replan(self.table, self.table.apply(changes))
        self.kernel.write(replan.plan)
        self.books.accept(replan)
        assert self.books.wanted() == self.kernel.maps
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


def test_no_frontend_ever_dangles() -> None:
    node = Node()
    for changes in STORY:
        node.change(*changes)
    assert not any(node.kernel.maps.values())


def test_a_restart_at_any_point_writes_nothing() -> None:
    node = Node()
    for changes in STORY:
        node.change(*changes)
        assert Books().adopt(node.table, node.kernel.maps, node.books.numbers.next).empty


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
        pytest.param([(5, "a"), (5, None)], {}, id="held by an unknown frontend too"),
        pytest.param([(5, "a"), (6, "a")], {"a": 5}, id="two numbers: the lower"),
        pytest.param([(0, "a")], {}, id="zero is no number"),
    ],
)
def test_adopting_numbers(found: list[tuple[int, str | None]], kept: dict[str, int]) -> None:
    names = {text: ServicePortName("shop", text, "", 6) for text in "ab"}
    numbers = Numbers()
    numbers.adopt([(number, names[text] if text else b"unknown") for number, text in found])
    for text, name in names.items():
        assert numbers.known(name) is (text in kept)
        used = {number for number, _text in found}
        assert numbers.of(name) == kept[text] if text in kept else numbers.of(name) not in used


def test_case_22_a_collision_is_undone_without_a_wrong_moment() -> None:
    node = Node()
    node.change(service(), slice_of(["10.244.2.1", "10.244.2.2"]), service("db", "10.96.0.2"),
                slice_of(["10.244.3.1"], "db"))
    ours = {key: {ip for ip, _port in row.endpoints} for key, row in read_rows(node.kernel.maps).items()}
    stolen = layout.FrontendValue.unpack(node.kernel.maps["frontends4"][layout.frontend_key(*WEB)])
    other = FrontendKey(4, ipaddress.ip_address("10.96.0.2").packed, 6, 80)
    value = layout.FrontendValue.unpack(node.kernel.maps["frontends4"][layout.frontend_key(*other)])
    node.kernel.maps["frontends4"][layout.frontend_key(*other)] = value._replace(service=stolen.service).pack()
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
