"""A canary: which Services are ours, and that nothing of the others is in the table."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.canary import (
    CanaryError,
    parse_canary,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.idle_canary import idle_canary
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable, TableDelta
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)

OLD, NEW = "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"
SHARED = "198.51.100.54"


def labelled(name: str, *, namespace: str = "shop", **fields: Any) -> dict[str, Any]:
    labels = fields.pop("labels", {})
    made = service(name, namespace, **fields)
    made["metadata"]["labels"] = labels
    return made


def key(address: str, port: int = 80) -> FrontendKey:
    return FrontendKey(4, parse_address(address) if address else b"", TCP, port)


def table(*manifests: dict[str, Any], **canary: Any) -> ServiceTable:
    made = ServiceTable(config(canary=canary or {"services": ["shop/web"]}))
    made.apply(upserts(*manifests))
    return made


CHOICES: list[tuple[str, dict[str, Any], bool]] = [
    # what, canary, whether shop/web is ours
    ("a label", {"selector": "app=web"}, True),
    ("another label", {"selector": "app=api"}, False),
    ("its namespace", {"namespaces": ["shop"]}, True),
    ("another namespace", {"namespaces": ["ops", "dev"]}, False),
    ("label within its namespace", {"selector": "app", "namespaces": ["shop"]}, True),
    ("label within another namespace", {"selector": "app", "namespaces": ["ops"]}, False),
    ("its name", {"services": ["shop/web"]}, True),
    ("its name in another namespace", {"services": ["ops/web"]}, False),
    ("its name beside a label of others", {"selector": "app=api", "services": ["shop/web"]}, True),
]


@pytest.mark.parametrize(("canary", "ours"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_what_is_chosen(canary: dict[str, Any], ours: bool) -> None:
    chosen = parse_canary(canary)
    web = parse(labelled("web", labels={"app": "web"}))
    assert chosen is not None
    assert isinstance(web, Service)
    assert chosen.chooses(web) is ours


@pytest.mark.parametrize(
    ("canary", "named"),
    [
        ({}, "chooses no Service"),
        ({"selector": " "}, "chooses no Service"),
        ({"selector": "app=web,"}, "canary.selector: .*no label selector"),
        ({"selector": ["app"]}, "canary.selector must be text"),
        ({"namespaces": "shop"}, "canary.namespaces must be a list"),
        ({"namespaces": ["Shop"]}, "canary.namespaces: 'Shop'"),
        ({"services": ["web"]}, "canary.services: 'web' is not NAMESPACE/NAME"),
        ({"labels": "app=web"}, "canary.labels is not known"),
        ("app=web", "must be a mapping"),
    ],
)
def test_what_chooses_nothing_or_cannot_be_read_is_refused(canary: Any, named: str) -> None:
    with pytest.raises(CanaryError, match=named):
        parse_canary(canary)


def test_only_the_chosen_have_rows_and_unused_addresses_are_nobodys() -> None:
    cidrs = {"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"}}
    made = table(
        service("web"),
        endpoints("10.244.1.5"),
        service("api", clusterIP="10.96.0.6"),
        endpoints("10.244.1.6", service="api"),
        {**cidrs, "spec": {"cidrs": ["10.96.0.0/12"]}},
    )
    assert set(made.frontends) == {key("10.96.0.5")}
    assert set(made.built) == {("shop", "web")}
    assert made.rules[4].service_cidrs == ()


def changes(made: ServiceTable, *manifests: dict[str, Any]) -> TableDelta:
    return made.apply(upserts(*manifests))


def test_a_label_that_comes_and_goes_moves_the_service() -> None:
    made = table(labelled("web"), endpoints("10.244.1.5"), selector="canary")
    assert made.frontends == {}
    assert set(changes(made, labelled("web", labels={"canary": "yes"})).before) == {key("10.96.0.5")}
    assert set(made.frontends) == {key("10.96.0.5")}
    # Endpoints that change while a Service is ours are a change, and none once it is not.
    assert not changes(made, endpoints("10.244.1.6")).empty
    assert set(changes(made, labelled("web")).before) == {key("10.96.0.5")}
    assert made.frontends == {}
    assert made.built == {}
    assert changes(made, endpoints("10.244.1.7")).empty
    assert made.apply([Delete("Service", "shop", "web")]).empty


def shared(name: str, created: str, cluster_ip: str) -> dict[str, Any]:
    return service(name, created=created, clusterIP=cluster_ip, externalIPs=[SHARED])


@pytest.mark.parametrize("swapped", [False, True])
def test_an_address_that_kube_proxys_service_has_the_better_claim_to_is_not_ours(swapped: bool) -> None:
    manifests = [shared("web", NEW, "10.96.0.5"), shared("api", OLD, "10.96.0.6")]
    made = table(*(reversed(manifests) if swapped else manifests))
    assert set(made.frontends) == {key("10.96.0.5")}
    assert [str(conflict) for conflict in made.conflicts] == [
        f"Service shop/web: {SHARED}:80/TCP already belongs to the older Service shop/api"
    ]
    delta = made.apply([Delete("Service", "shop", "api")])
    assert set(delta.before) == {key(SHARED)}
    assert made.frontends[key(SHARED)].service_port.name == "web"


def test_a_chosen_external_ip_never_takes_a_cluster_ip_from_kube_proxy() -> None:
    thief = service("web", created=OLD, externalIPs=["10.96.0.6"])
    made = table(thief, service("api", created=NEW, clusterIP="10.96.0.6"))
    assert key("10.96.0.6") not in made.frontends


def test_claims_among_others_are_none_of_our_business() -> None:
    made = table(shared("api", NEW, "10.96.0.6"), shared("old", OLD, "10.96.0.7"))
    assert made.frontends == {}
    assert made.conflicts == []


def test_an_address_won_and_lost_within_one_batch_is_no_change() -> None:
    made = table(service("web"))
    both = changes(made, shared("web", NEW, "10.96.0.5"), shared("api", OLD, "10.96.0.6"))
    assert both.empty


def test_loopback_node_ports_stay_kube_proxys() -> None:
    gates = {"KubeProxyNFTablesLocalhostNodePorts": True}
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    manifests = [service(type="NodePort", ports=ports), endpoints("10.244.1.5")]
    for canary, loopback in ((None, "relay"), ({"namespaces": ["shop"]}, "pass")):
        made = ServiceTable(config(canary=canary, featureGates=gates, nodePortAddresses=["localhost"]))
        made.apply(upserts(*manifests))
        assert made.frontends[key("", 30080)].loopback == loopback


def test_a_canary_that_chooses_nothing_is_told() -> None:
    assert idle_canary(table(namespaces=["elsewhere"])) == [], "there may be Services in a moment"
    (sentence,) = idle_canary(table(service(), service("db", cluster_ip="10.96.0.6"), namespaces=["elsewhere"]))
    assert "namespaces elsewhere" in sentence
    assert "none of the 2 Services" in sentence
    assert idle_canary(table(service(), namespaces=["shop"])) == []
    assert idle_canary(ServiceTable(config())) == []
