# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.notes import all_notes, node_notes
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete, Upsert, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.facts import FactsTracker
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import RelayKey

LOCAL = [parse_address(text) for text in ("127.0.0.1", "192.0.2.11", "198.51.100.7", "::1", "2001:db8::11")]


class World:
    """A table, its tracker, and objects by keyword."""

    def __init__(self, **config: Any) -> None:
        self.table = ServiceTable(ProxyConfig.from_mapping({"nodeName": "n1", **config}))
        self.tracker = FactsTracker(self.table)

    def put(self, *manifests: dict[str, Any]) -> None:
        changes = [Upsert(obj) for obj in map(parse, manifests) if obj is not None]
        self.tracker.update(self.table.apply(changes).services)

    def delete(self, kind: str, name: str) -> None:
        self.tracker.update(self.table.apply([Delete(kind, "shop", name)]).services)


def node(**spec: Any) -> dict[str, Any]:
    addresses = [{"type": "InternalIP", "address": text} for text in ("192.0.2.11", "2001:db8::11")]
    metadata = {"name": "n1"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": {"addresses": addresses}}


def service(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.9",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32080,
            "ports": [
                {"name": "http", "port": 80, "nodePort": 31080},
                {"name": "https", "port": 443, "nodePort": 31443},
            ],
            **spec,
        },
    }


def slice_of(*endpoints: tuple[str, str, str], name: str = "web-1", ports: tuple[str, ...] = ("http", "https")) -> Any:
    conditions = {
        "ready": {"ready": True},
        "draining": {"ready": False, "serving": True, "terminating": True},
        "broken": {"ready": False, "serving": False},
        "leaving": {"ready": True, "serving": True, "terminating": True},
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": port, "port": 8000 + index, "protocol": "TCP"} for index, port in enumerate(ports)],
        "endpoints": [
            {"addresses": [ip], "nodeName": where, "conditions": conditions[how]} for ip, where, how in endpoints
        ],
    }


@pytest.mark.parametrize(
    ("slices", "count"),
    [
        pytest.param([], 0, id="no slice"),
        pytest.param([slice_of(("10.244.1.1", "n1", "ready"))], 1, id="two ports, one pod"),
        pytest.param(
            [slice_of(("10.244.1.1", "n1", "ready")), slice_of(("10.244.1.2", "n1", "ready"), name="web-2")],
            2,
            id="two slices",
        ),
        pytest.param([slice_of(("10.244.1.1", "n1", "ready"), ("10.244.2.1", "n2", "ready"))], 1, id="another node's"),
        pytest.param([slice_of(("10.244.1.1", "n1", "draining"))], 0, id="draining serves but does not count"),
        pytest.param([slice_of(("10.244.1.1", "n1", "broken"))], 0, id="not ready"),
        pytest.param([slice_of(("10.244.1.1", "", "ready"))], 0, id="no node name"),
        pytest.param([slice_of(("10.244.1.1", "n1", "ready"), ports=())], 0, id="no ports, no endpoint"),
        pytest.param(
            [slice_of(("10.244.1.1", "n1", "leaving")), slice_of(("10.244.1.1", "n1", "broken"), name="web-2")],
            0,
            id="published and leaving, its address is that of a pod that starts",
        ),
    ],
)
def test_health_checks_count_local_ready_addresses(slices: list[Any], count: int) -> None:
    world = World()
    world.put(node(), service(), *slices)
    (check,) = world.tracker.facts(LOCAL).health_checks
    assert (check.service, check.family, check.port, check.local_endpoints) == ("web", 4, 32080, count)


@pytest.mark.parametrize(
    "spec",
    [
        {"type": "NodePort", "healthCheckNodePort": 32080},
        {"externalTrafficPolicy": "Cluster"},
        {"healthCheckNodePort": 0},
    ],
)
def test_only_local_load_balancers_have_a_check(spec: dict[str, Any]) -> None:
    world = World()
    world.put(node(), service(**spec), slice_of(("10.244.1.1", "n1", "ready")))
    assert world.tracker.facts(LOCAL).health_checks == ()


def test_a_deleted_service_leaves_nothing_behind() -> None:
    world = World()
    world.put(node(), service(), slice_of(("10.244.2.1", "n2", "ready")))
    facts = world.tracker.facts(LOCAL)
    assert facts.no_local_endpoints[("external", 4)] == 2
    assert facts.frontends[4] == 4
    world.delete("Service", "web")
    facts = world.tracker.facts(LOCAL)
    assert facts.health_checks == ()
    assert set(facts.no_local_endpoints.values()) == {0}
    assert set(facts.frontends.values()) == {0}


@pytest.mark.parametrize(
    ("config", "ipv4", "ipv6"),
    [
        pytest.param({}, ("192.0.2.11",), ("2001:db8::11",), id="primary is the default"),
        pytest.param(
            {"nodePortAddresses": ["198.51.100.0/24"]}, ("198.51.100.7",), ("",), id="one family leaves the other open"
        ),
        pytest.param({"nodePortAddresses": ["0.0.0.0/0", "::/0"]}, ("",), ("",), id="everywhere"),
        pytest.param({"nodePortAddresses": ["127.0.0.0/8", "::1/128"]}, (), (), id="loopback never"),
        pytest.param(
            {"nodePortAddresses": ["203.0.113.9/32"]}, ("203.0.113.9",), ("",), id="an address that is not here yet"
        ),
        pytest.param({"ipFamilies": ["IPv4"]}, ("192.0.2.11",), (), id="a family that is not served"),
    ],
)
def test_where_node_ports_are_served(config: dict[str, Any], ipv4: tuple[str, ...], ipv6: tuple[str, ...]) -> None:
    world = World(**config)
    world.put(node())
    assert world.tracker.facts(LOCAL).node_port_addresses == {4: ipv4, 6: ipv6}


GATE = {"featureGates": {"KubeProxyNFTablesLocalhostNodePorts": True}, "nodePortAddresses": ["primary", "localhost"]}


@pytest.mark.parametrize(
    ("spec", "endpoints", "expected"),
    [
        pytest.param(
            {"externalTrafficPolicy": "Cluster"}, [("10.244.2.1", "n2", "ready")], (("10.244.2.1", 8000),), id="all"
        ),
        pytest.param(
            {},
            [("10.244.1.1", "n1", "ready"), ("10.244.2.1", "n2", "ready")],
            (("10.244.1.1", 8000),),
            id="local policy",
        ),
        pytest.param({}, [("10.244.2.1", "n2", "ready")], (), id="none here"),
        pytest.param({}, [], (), id="none at all"),
    ],
)
def test_the_relay_uses_what_outsiders_would_get(
    spec: dict[str, Any], endpoints: list[tuple[str, str, str]], expected: tuple[tuple[str, int], ...]
) -> None:
    world = World(**GATE)
    world.put(node(), service(**spec), slice_of(*endpoints))
    assert world.tracker.facts(LOCAL).relays[RelayKey(4, 31080)].endpoints == expected


@pytest.mark.parametrize(
    "config", [{}, {"featureGates": GATE["featureGates"]}, {"nodePortAddresses": ["primary", "127.0.0.0/8"]}]
)
def test_no_relay_without_gate_and_opt_in(config: dict[str, Any]) -> None:
    world = World(**config)
    world.put(node(), service(), slice_of(("10.244.1.1", "n1", "ready")))
    assert world.tracker.facts(LOCAL).relays == {}


@pytest.mark.parametrize(
    ("manifest", "eligible"),
    [
        (node(), True),
        (node(taints=[{"key": "ToBeDeletedByClusterAutoscaler"}]), False),
        (node(taints=[{"key": "x"}]), True),
    ],
)
def test_node_eligibility(manifest: dict[str, Any], eligible: bool) -> None:
    world = World()
    assert world.tracker.facts(LOCAL).node_eligible is None
    world.put(manifest)
    assert world.tracker.facts(LOCAL).node_eligible is eligible


def test_what_is_not_served_is_noted_until_it_is_put_right() -> None:
    world = World()
    world.put(
        service(externalIPs=["2001:db8::61"]),
        slice_of(("10.244.1.5", "n1", "ready"), ("fd00::5", "n1", "ready")),
    )
    external, slice_note = world.tracker.facts(LOCAL).notes["shop/web"]
    assert "2001:db8::61 is of a family" in external
    assert slice_note.startswith("EndpointSlice web-1: ")
    world.put(service(), slice_of(("10.244.1.5", "n1", "ready")))
    assert world.tracker.facts(LOCAL).notes == {}


def test_a_note_alone_is_a_change() -> None:
    world = World()
    world.put(service(), slice_of(("10.244.1.5", "n1", "ready")))
    world.put(slice_of(("10.244.1.5", "n1", "ready"), ("fd00::5", "n1", "ready"), ("fd00::6", "n1", "ready")))
    assert [note.partition(": fd00")[0] for note in world.tracker.facts(LOCAL).notes["shop/web"]] == [
        "EndpointSlice web-1: endpoints[1]",
        "EndpointSlice web-1: endpoints[2]",
    ]
    world.put(slice_of(("10.244.1.5", "n1", "ready")))
    assert world.tracker.facts(LOCAL).notes == {}


PORT = {"name": "http", "protocol": "TCP", "port": 80}
UNMATCHED = [
    ([PORT], ""),
    ([{**PORT, "name": "web"}], "port http/TCP has no endpoint in IPv4: .* they have web/TCP$"),
    ([{**PORT, "protocol": "UDP"}, {"port": 1}], r"have \(unnamed\)/TCP, http/UDP$"),
    ([{"name": "http"}], "have none with a number$"),
    ([], "have none with a number$"),
]


@pytest.mark.parametrize(("ports", "words"), UNMATCHED)
def test_ports_that_no_slice_has_are_noted(ports: list[dict[str, Any]], words: str) -> None:
    world = World()
    world.put(service(ports=[PORT]), {**slice_of(("10.244.1.5", "n1", "ready")), "ports": ports})
    notes = world.tracker.facts(LOCAL).notes.get("shop/web", ())
    assert len(notes) == bool(words)
    assert all(re.search(words, note) for note in notes)


def test_a_service_without_endpoints_has_nothing_to_note() -> None:
    world = World()
    world.put(service(), {**slice_of(), "ports": None})
    assert world.tracker.facts(LOCAL).notes == {}


def test_what_of_the_node_is_left_out_is_noted() -> None:
    world = World()
    assert node_notes(world.table) == []
    world.put(node(podCIDRs=["10.244.1.0/24", "10.244.2.0/33"]))
    assert [note.partition(":")[0] for note in node_notes(world.table)] == ["Node n1"]
    assert all_notes(world.table) == node_notes(world.table)


def test_more_endpoints_than_the_backend_has_room_for_are_noted() -> None:
    world = World()
    world.put(service(), slice_of(*[(f"10.244.1.{last}", "n1", "ready") for last in range(1, 6)]))
    tracker = FactsTracker(world.table, most_endpoints=4)
    tracker.update_all()
    assert tracker.facts(LOCAL).notes["shop/web"][0] == (
        "port http has 5 endpoints in IPv4, of which the first 4 by address are served"
    )
