"""Which endpoints a service port may use on node n1 in zone east: one row, one rule."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import (
    EndpointSlice,
    SliceEndpoint,
    SlicePort,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP, UDP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import ServicePort
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.candidates import candidates
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import categorize
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.select import select

NONE: frozenset[str] = frozenset()


def endpoint(
    last: int,
    node: str = "n2",
    ready: bool = True,
    serving: bool = True,
    terminating: bool = False,
    zones: frozenset[str] = NONE,
    nodes: frozenset[str] = NONE,
) -> SliceEndpoint:
    return SliceEndpoint(bytes([10, 244, 1, last]), node, ready, serving, terminating, zones, nodes)


def draining(last: int, node: str = "n2", serving: bool = True) -> SliceEndpoint:
    return endpoint(last, node, ready=False, serving=serving, terminating=True)


def piece(
    *endpoints: SliceEndpoint, name: str = "s1", ports: tuple[SlicePort, ...] = (SlicePort("http", TCP, 8080),)
) -> EndpointSlice:
    return EndpointSlice("shop", name, "web", 4, ports, endpoints, "", ())


EAST, WEST = frozenset({"east"}), frozenset({"west"})
HERE, THERE = frozenset({"n1"}), frozenset({"n2"})


@dataclass(frozen=True)
class Row:
    name: str
    endpoints: tuple[SliceEndpoint, ...]
    cluster: set[int]
    local: set[int] = field(default_factory=set)
    zone: str = "east"


ROWS = [
    Row("nothing", (), set()),
    Row("ready ones", (endpoint(1), endpoint(2, "n1")), {1, 2}, {2}),
    Row("a draining one gets nothing beside ready ones", (endpoint(1), draining(2, "n1")), {1}, {2}),
    Row("draining ones when nobody is ready", (draining(1), draining(2, "n1")), {1, 2}, {2}),
    Row("those that stopped serving never", (draining(1, serving=False),), set()),
    Row("not ready and not terminating never", (endpoint(1, "n1", ready=False),), set()),
    Row("ready and terminating counts as ready", (endpoint(1, "n1", terminating=True),), {1}, {1}),
    Row("no node name is not local", (endpoint(1, ""),), {1}),
    Row("zone hints", (endpoint(1, zones=EAST), endpoint(2, "n1", zones=WEST)), {1}, {2}),
    Row("a ready one without a hint voids them", (endpoint(1, zones=EAST), endpoint(2)), {1, 2}),
    Row("hints that do not name our zone are void", (endpoint(1, zones=WEST),), {1}),
    Row(
        "a node without a zone ignores zone hints", (endpoint(1, zones=WEST), endpoint(2, zones=EAST)), {1, 2}, zone=""
    ),
    Row("hints of those not ready do not count", (endpoint(1), endpoint(2, ready=False, zones=EAST)), {1}),
    Row(
        "node hints come first",
        (endpoint(1, zones=EAST, nodes=HERE), endpoint(2, zones=EAST, nodes=THERE)),
        {1},
    ),
    Row("without all node hints zones decide", (endpoint(1, zones=EAST, nodes=HERE), endpoint(2, zones=EAST)), {1, 2}),
    Row(
        "a node hint may name a node it does not run on", (endpoint(1, "n3", nodes=HERE), endpoint(2, nodes=THERE)), {1}
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_what_the_policies_may_use(row: Row) -> None:
    found = candidates(ServicePort("http", TCP, 80, 0), [piece(*row.endpoints)], 4)
    sets = categorize(found, "n1", row.zone)
    assert {item.ip[3] for item in sets.cluster} == row.cluster
    assert {item.ip[3] for item in sets.local} == row.local
    assert sets.exists == bool(row.cluster)
    assert select(ServicePort("http", TCP, 80, 0), [piece(*row.endpoints)], 4, "n1", row.zone) == (sets, frozenset())


JOINS = [
    ("by name", SlicePort("http", TCP, 8080), True),
    ("by protocol", SlicePort("http", UDP, 8080), False),
    ("another name", SlicePort("metrics", TCP, 80), False),
    ("the empty name is a name", SlicePort("", TCP, 8080), False),
]


@pytest.mark.parametrize(("port", "joined"), [row[1:] for row in JOINS], ids=[row[0] for row in JOINS])
def test_a_slice_port_joins_by_name_and_protocol(port: SlicePort, joined: bool) -> None:
    assert bool(candidates(ServicePort("http", TCP, 80, 0), [piece(endpoint(1), ports=(port,))], 4)) is joined


def test_one_name_with_two_numbers_gives_both() -> None:
    old = piece(endpoint(1), name="old")
    new = piece(endpoint(2), name="new", ports=(SlicePort("http", TCP, 9090),))
    assert {key[1] for key in candidates(ServicePort("http", TCP, 80, 0), [old, new], 4)} == {8080, 9090}


def test_endpoints_are_told_apart_by_address_and_port() -> None:
    both = piece(endpoint(1), ports=(SlicePort("http", TCP, 8080), SlicePort("http", TCP, 8081)))
    assert len(candidates(ServicePort("http", TCP, 80, 0), [both], 4)) == 2


DUPLICATES = [
    ("ready beats draining", endpoint(1), draining(1)),
    ("ready beats dead", endpoint(1), draining(1, serving=False)),
    ("staying beats leaving", endpoint(1), endpoint(1, terminating=True)),
    ("a pod that starts beats one that drains on its address", endpoint(1, ready=False, serving=False), draining(1)),
    ("a pod that starts beats a published one that leaves", endpoint(1, ready=False), endpoint(1, terminating=True)),
    ("of two that stay the ready one counts", endpoint(1), endpoint(1, ready=False)),
    ("of two that leave the one that still serves counts", draining(1), draining(1, serving=False)),
]


@pytest.mark.parametrize(("better", "worse"), [row[1:] for row in DUPLICATES], ids=[row[0] for row in DUPLICATES])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("one_slice", [False, True])
def test_of_two_entries_the_one_that_does_not_terminate_counts_in_any_order(
    better: SliceEndpoint, worse: SliceEndpoint, swapped: bool, one_slice: bool
) -> None:
    first, second = (worse, better) if swapped else (better, worse)
    slices = [piece(first, second)] if one_slice else [piece(first, name="a"), piece(second, name="b")]
    assert list(candidates(ServicePort("http", TCP, 80, 0), slices, 4).values()) == [better]


OLD_NUMBER, NEW_NUMBER = SlicePort("http", TCP, 8080), SlicePort("http", TCP, 9090)
SLICES = [
    ("no slice", []),
    ("one slice", [piece(endpoint(3), endpoint(1, "n1"), endpoint(2))]),
    ("several slices", [piece(endpoint(2), name="a"), piece(endpoint(1, "n1"), name="b")]),
    ("an address twice in a slice", [piece(endpoint(1), endpoint(1, "n1"))]),
    ("an address in two slices", [piece(endpoint(1), name="a"), piece(endpoint(1, "n1"), name="b")]),
    ("a name with two numbers", [piece(endpoint(1), ports=(OLD_NUMBER, NEW_NUMBER))]),
    ("another number in another slice", [piece(endpoint(1)), piece(endpoint(1), name="b", ports=(NEW_NUMBER,))]),
    ("a slice without endpoints beside one with", [piece(name="a"), piece(endpoint(1), name="b")]),
    ("another family", [piece(endpoint(1))._replace(family=6)]),
    ("two families", [piece(endpoint(1)), piece(endpoint(2), name="b")._replace(family=6)]),
    ("some that drain", [piece(endpoint(1), draining(2, "n1"))]),
]


@pytest.mark.parametrize("slices", [row[1] for row in SLICES], ids=[row[0] for row in SLICES])
def test_the_shortest_way_leads_where_the_long_one_leads(slices: list[EndpointSlice]) -> None:
    port = ServicePort("http", TCP, 80, 0)
    sets, serving = select(port, slices, 4, "n1", "")
    assert sets == categorize(candidates(port, slices, 4), "n1", "")
    assert not serving


def test_udp_flows_may_keep_endpoints_that_serve() -> None:
    udp = (SlicePort("dns", UDP, 53),)
    slices = [piece(endpoint(1), draining(2), draining(3, serving=False), ports=udp)]
    sets, serving = select(ServicePort("dns", UDP, 53, 0), slices, 4, "n1", "")
    assert {item.ip[3] for item in sets.cluster} == {1}
    assert {ip[3] for ip, _port in serving} == {1, 2}
