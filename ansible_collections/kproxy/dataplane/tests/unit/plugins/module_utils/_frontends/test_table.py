"""The service table: claims on frontends, what a change touches, rules of the node."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.closed_node_ports import (
    closed_node_ports,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ConfigError, ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.notes import notes_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.undetected import undetected
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.unknown_node import unknown_node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)


def key(address: str, port: int = 80) -> FrontendKey:
    return FrontendKey(4, parse_address(address) if address else b"", TCP, port)


def table(*manifests: dict[str, Any], **settings: Any) -> ServiceTable:
    made = ServiceTable(config(**settings))
    made.apply(upserts(*manifests))
    return made


OLD, NEW = "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"


def shared(name: str, created: str, cluster_ip: str) -> dict[str, Any]:
    return service(name, created=created, clusterIP=cluster_ip, externalIPs=["198.51.100.54"])


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_claims_the_older_service_has_it_and_the_loser_is_named(swapped: bool) -> None:
    manifests = [shared("young", NEW, "10.96.0.6"), shared("old", OLD, "10.96.0.7")]
    made = table(*(reversed(manifests) if swapped else manifests))
    assert made.frontends[key("198.51.100.54")].service_port.name == "old"
    assert [str(conflict) for conflict in made.conflicts] == [
        "Service shop/young: 198.51.100.54:80/TCP already belongs to the older Service shop/old"
    ]


def test_the_loser_takes_over_when_the_winner_goes() -> None:
    made = table(shared("young", NEW, "10.96.0.6"), shared("old", OLD, "10.96.0.7"))
    delta = made.apply([Delete("Service", "shop", "old")])
    assert made.frontends[key("198.51.100.54")].service_port.name == "young"
    assert key("10.96.0.7") not in made.frontends
    assert set(delta.before) == {key("198.51.100.54"), key("10.96.0.7")}
    assert made.conflicts == []


def test_nobody_takes_over_a_cluster_ip() -> None:
    thief = service("thief", created=OLD, clusterIP="10.96.0.9", externalIPs=["10.96.0.5"])
    made = table(thief, service("web", created=NEW))
    assert made.frontends[key("10.96.0.5")].service_port.name == "web"


def test_external_ips_are_served_unless_their_gate_is_off() -> None:
    """KEP-5707: pkg/proxy/serviceport.go ExternalIPs. An ingress address that is one of them is served as such."""
    web = service(type="LoadBalancer", externalIPs=["198.51.100.54", "198.51.100.55"], ingress=["198.51.100.55"])
    assert {key("198.51.100.54"), key("198.51.100.55")} <= set(table(web).frontends)
    made = table(web, featureGates={"AllowServiceExternalIPs": False})
    assert set(made.frontends) == {key("10.96.0.5"), key("198.51.100.55")}
    assert list(notes_of(made, ("shop", "web"))) == [
        "externalIPs: the feature gate AllowServiceExternalIPs is off; 198.51.100.54, 198.51.100.55 are left out"
    ]


def test_a_change_touches_only_its_service() -> None:
    made = table(service(), endpoints("10.244.1.5"), service("other", clusterIP="10.96.0.6"))
    delta = made.apply(upserts(endpoints("10.244.1.5", "10.244.1.6")))
    assert set(delta.before) == {key("10.96.0.5")}
    assert delta.services == {("shop", "web")}


UNCHANGED = [
    ("the same object again", endpoints("10.244.1.5")),
    (
        "a new trigger time alone",
        {
            **endpoints("10.244.1.5"),
            "metadata": {
                "namespace": "shop",
                "name": "web-1",
                "labels": {"kubernetes.io/service-name": "web"},
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": NEW},
            },
        },
    ),
    ("another node", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}}),
    ("a slice of nobody", endpoints("10.244.1.9", name="loose", metadata={"namespace": "shop", "name": "loose"})),
]


@pytest.mark.parametrize("manifest", [row[1] for row in UNCHANGED], ids=[row[0] for row in UNCHANGED])
def test_what_changes_nothing(manifest: dict[str, Any]) -> None:
    made = table(service(), endpoints("10.244.1.5"))
    assert made.apply(upserts(manifest)).empty


def test_a_zone_label_replans_services_with_hints() -> None:
    slice_of_two = endpoints("10.244.1.5", "10.244.1.6")
    for endpoint, zone in zip(slice_of_two["endpoints"], ("east", "west")):
        endpoint["hints"] = {"forZones": [{"name": zone}]}
    made = table(service(), slice_of_two)
    assert len(made.frontends[key("10.96.0.5")].cluster_endpoints) == 2
    labelled = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "west"}},
    }
    assert set(made.apply(upserts(labelled)).before) == {key("10.96.0.5")}
    assert len(made.frontends[key("10.96.0.5")].cluster_endpoints) == 1


def test_a_new_service_cidr_changes_the_rules_at_once() -> None:
    made = table(service())
    cidr = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["10.96.0.0/16"]},
    }
    delta = made.apply(upserts(cidr))
    assert delta.rules_changed
    assert not delta.before
    assert [str(prefix) for prefix in made.rules[4].service_cidrs] == ["10.96.0.0/16"]


def test_a_slice_that_moves_to_another_service_leaves_the_first() -> None:
    made = table(service(), service("next", clusterIP="10.96.0.6"), endpoints("10.244.1.5"))
    moved = endpoints("10.244.1.5", service="next", name="web-1")
    made.apply(upserts(moved))
    assert made.frontends[key("10.96.0.5")].outsiders.verdict == "reject"
    assert made.frontends[key("10.96.0.6")].outsiders.verdict == "dnat"


def test_deleting_the_node_object_changes_nothing() -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]},
    }
    made = table(node)
    before = made.rules
    assert made.apply([Delete("Node", "", "n1")]).empty
    assert made.rules == before


NODE_PORTS = [
    ("primary", {"nodeIPs": ["192.0.2.11"]}, ["192.0.2.11/32"]),
    ("primary of an unknown node is everything", {}, None),
    ("ranges", {"nodePortAddresses": ["192.0.2.0/24"]}, ["192.0.2.0/24"]),
    ("a family without a range is open", {"nodePortAddresses": ["2001:db8::/32"]}, None),
    ("a zero range is everything", {"nodePortAddresses": ["192.0.2.0/24", "0.0.0.0/0"]}, None),
    ("all", {"nodePortAddresses": ["all", "192.0.2.0/24"]}, None),
    ("the bind address replaces the primary one", {"nodeIPs": ["192.0.2.11"], "bindAddress": "192.0.2.99"},
     ["192.0.2.99/32"]),
    ("a loopback bind address leaves no primary one", {"nodeIPs": ["192.0.2.11"], "bindAddress": "127.0.0.1"}, None),
    ("an unspecified bind address does not", {"nodeIPs": ["192.0.2.11"], "bindAddress": "0.0.0.0"}, ["192.0.2.11/32"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "ranges"), [row[1:] for row in NODE_PORTS], ids=[str(row[0]) for row in NODE_PORTS]
)
def test_where_node_ports_are_accepted(settings: dict[str, Any], ranges: list[str] | None) -> None:
    found = table(**settings).rules[4].node_port_ranges
    assert (None if found is None else [str(prefix) for prefix in found]) == ranges


REFUSED = [
    ({}, "nodeName is missing"),
    ({"nodeName": "n1", "nodePortAddress": []}, "unknown setting nodePortAddress; did you mean nodePortAddresses?"),
    ({"nodeName": "n1", "wxyz": 1}, "unknown setting wxyz; known are apiVersion, "),
    ({"nodeName": "n1", "detectLocalMode": "Magic"}, "detectLocalMode is 'Magic'"),
    ({"nodeName": "n1", "clusterCIDR": "10.244.0.0"}, "clusterCIDR: '10.244.0.0' is not a CIDR block"),
    ({"nodeName": "n1", "nodePortAddresses": ["eth0"]}, "nodePortAddresses: 'eth0' is neither"),
    ({"nodeName": "n1", "nodePortAddresses": ["192.0.2.7"]}, "a single address is 192.0.2.7/32"),
    ({"nodeName": "n1", "nodePortAddresses": ["localhost"]}, "nodePortAddresses: localhost needs featureGates"),
    ({"nodeName": "n1", "masqueradeAll": "false"}, "masqueradeAll must be true or false without quotes, not 'false'"),
    ({"nodeName": "n1", "nftables": {"masqueradeAll": "no"}}, "masqueradeAll must be true or false without quotes"),
    ({"nodeName": "n1", "featureGates": {"A": "false"}}, "featureGates.A must be true or false without quotes"),
    ({"nodeName": "n1", "clusterCIDR": 10}, "clusterCIDR must be a list, not 10"),
    ({"nodeName": "n1", "nodeIPs": {"a": 1}}, "nodeIPs must be a list"),
    ({"nodeName": "n1", "detectLocal": {"interfaceNamePrefx": "v"}}, "unknown setting detectLocal.interfaceNamePrefx"),
    ({"nodeName": "n1", "nftables": []}, "nftables must be a mapping"),
    ({"nodeName": "n1", "detectLocalMode": "BridgeInterface"}, "detectLocal.bridgeInterface is missing"),
    ({"nodeName": "n1", "masqueradeBit": 32}, "masqueradeBit must be a number from 0 to 31"),
    ({"nodeName": "n1", "ipFamilies": ["IPv5"]}, "ipFamilies must be a list"),
    (
        {"nodeName": "n1", "detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": 'x" drop'}},
        "is no interface name",
    ),
]


@pytest.mark.parametrize(("values", "reason"), REFUSED, ids=[row[1] for row in REFUSED])
def test_settings_that_cannot_be_used_are_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProxyConfig.from_mapping(values)
    assert reason in str(caught.value)


def test_where_kproxyd_listens_is_no_matter_of_packets() -> None:
    listening = {"healthzBindAddress": "[::]:10256", "metricsBindAddress": "0.0.0.0", "bindAddressHardFail": True}
    assert ProxyConfig.from_mapping({"nodeName": "n1", **listening}) == ProxyConfig("n1")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"hostnameOverride": " Node-1.Example.ORG "}, "node-1.example.org"),
        ({"hostnameOverride": "other", "nodeName": "n1"}, "n1"),
    ],
)
def test_the_nodes_name(values: dict[str, Any], name: str) -> None:
    assert ProxyConfig.from_mapping(values).node_name == name


UNDETECTED = [
    ({"clusterCIDR": "10.244.0.0/16"}, []),
    ({"clusterCIDR": "fd00:10:244::/48"}, ["pods of IPv4 cannot be told from other clients"]),
    ({}, ["clusterCIDR has no range of IPv4"]),
    ({"detectLocalMode": "NodeCIDR"}, ["the Node has no podCIDR of IPv4"]),
    ({"detectLocalMode": "NodeCIDR", "podCIDRs": "10.244.1.0/24"}, []),
    ({"detectLocalMode": "InterfaceNamePrefix", "detectLocal": {"interfaceNamePrefix": "veth"}}, []),
]


@pytest.mark.parametrize(("settings", "told"), UNDETECTED, ids=[str(row[0]) for row in UNDETECTED])
def test_where_pods_cannot_be_recognised_is_told(settings: dict[str, Any], told: list[str]) -> None:
    made = ServiceTable(ProxyConfig.from_mapping({"nodeName": "n1", **settings}))
    assert undetected(made) == []
    made.apply(upserts(service()))
    found = undetected(made)
    assert len(found) == len(told)
    assert all(text in sentence for text, sentence in zip(told, found))


UNKNOWN_NODES = [
    ("node.local", True, ["did you mean node?"]),
    ("node.example.org", False, ["did you mean node?"]),
    ("other", True, ["there is no Node other", "kubectl get nodes"]),
    ("other", False, []),
    ("node", False, []),
]


@pytest.mark.parametrize(("name", "has_nodes", "told"), UNKNOWN_NODES)
def test_a_node_name_that_the_cluster_does_not_know_is_told(name: str, has_nodes: bool, told: list[str]) -> None:
    made = ServiceTable(ProxyConfig(name))
    made.apply(upserts(service(), endpoints("10.244.1.5@node")))
    found = unknown_node(made, has_nodes)
    assert len(found) == (1 if told else 0)
    assert all(text in found[0] for text in told)
    made.apply(upserts({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
    assert unknown_node(made, has_nodes) == []


NODE_PORT = [{"name": "http", "port": 80, "nodePort": 30080}]
CLOSED_NODE_PORTS: list[tuple[list[str] | None, list[dict[str, Any]], list[str], list[str]]] = [
    (["192.0.2.0/24"], NODE_PORT, ["192.0.2.11"], []),
    (
        ["192.0.2.0/24"],
        NODE_PORT,
        ["127.0.0.1", "198.51.100.7"],
        ["IPv4: no interface .* 192.0.2.0/24"],
    ),
    (["127.0.0.0/8"], NODE_PORT, ["127.0.0.1"], ["IPv4"]),
    (["192.0.2.0/24"], [{"name": "http", "port": 80}], [], []),
    (["192.0.2.0/24", "0.0.0.0/0"], NODE_PORT, [], []),
    # The primary address is not known while the Node was not seen: every address is open.
    (None, NODE_PORT, ["198.51.100.7"], []),
]


@pytest.mark.parametrize(("addresses", "ports", "local", "told"), CLOSED_NODE_PORTS)
def test_node_ports_that_no_address_accepts_are_told(
    addresses: list[str] | None, ports: list[dict[str, Any]], local: list[str], told: list[str]
) -> None:
    made = ServiceTable(config(nodePortAddresses=addresses))
    made.apply(upserts(service(type="NodePort", ports=ports)))
    found = closed_node_ports(made, [parse_address(text) for text in local])
    assert len(found) == len(told)
    assert all(re.search(words, sentence) for words, sentence in zip(told, found))
