"""From manifests to objects: what is kept, what is left out with a note, what is refused with the object's name."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.node import Node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import (
    expand,
    parse,
    without_others_content,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service


def service(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web", **metadata},
        "spec": {"clusterIP": "10.96.0.5", "ports": [{"name": "http", "port": 80}], **(spec or {})},
    }


def endpointslice(**fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": ["10.244.1.5"]}],
        **fields,
    }


def parsed_service(spec: dict[str, Any] | None = None, **metadata: Any) -> Service:
    obj = parse(service(spec, **metadata))
    assert isinstance(obj, Service)
    return obj


def parsed_slice(**fields: Any) -> EndpointSlice:
    obj = parse(endpointslice(**fields))
    assert isinstance(obj, EndpointSlice)
    return obj


LONG = "9" * 5000
REFUSED = [
    ("wrong shape", service({"ports": "80"}), "Service shop/web: spec.ports must be a list"),
    ("port out of range", service({"ports": [{"port": 70000}]}), "spec.ports[0].port must be between 1 and 65535"),
    ("port missing", service({"ports": [{"name": "http"}]}), "spec.ports[0].port is missing"),
    ("port not a number", service({"ports": [{"port": "80"}]}), "must be a number, not '80': write it without quotes"),
    ("what YAML makes of on", service(name=True), "metadata.name must be a string, not True: put it in quotes"),
    ("label of a wrong type", service(labels={"a": True}), "not 'a' to True: put both in quotes"),
    ("kind in small letters", {**service(), "kind": "service"}, "has no such kind: write kind: Service"),
    ("another version", {**service(), "apiVersion": "v2"}, "has apiVersion 'v2': write apiVersion: v1"),
    ("slice of the core group", {**endpointslice(), "apiVersion": "v1"}, "write apiVersion: discovery.k8s.io/v1"),
    ("a list at the top", [service()], "is not an object but list: separate the objects by ---"),
    ("unknown protocol", service({"ports": [{"port": 80, "protocol": "ICMP"}]}), "must be one of TCP, UDP, SCTP"),
    ("cluster IP", service({"clusterIP": "10.96.0.300"}), "'10.96.0.300' is not an IP address"),
    ("unknown type", service({"type": "Magic"}), "spec.type must be one of"),
    ("name of 254", service(name="a" * 254), "metadata.name is longer than 253"),
    ("labels", service(labels={"a": 1}), "metadata.labels must map strings to strings"),
    ("affinity of a year", service({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {
        "timeoutSeconds": 31536000}}}), "timeoutSeconds must be between 1 and 86400"),
    ("endpoints", endpointslice(endpoints={"a": 1}), "EndpointSlice shop/web-1: endpoints must be a list"),
    ("condition", endpointslice(endpoints=[{"addresses": ["10.0.0.1"], "conditions": {"ready": "yes"}}]),
     "ready must be true or false"),
    ("address type", endpointslice(addressType="IPX"), "addressType must be one of IPv4, IPv6, FQDN"),
    ("cluster IP of no place", service({"clusterIP": "127.0.0.1"}), "no address that clients could dial"),
    ("line end in the name", service(name="web\n"), "metadata.name must be printable text, not 'web\\n'"),
    ("surrogate", service(namespace="a\ud800"), "metadata.namespace must be printable text"),
    ("quotes in the namespace", service(namespace='a"b'), "metadata.namespace must be of a-z, 0-9, '-' and '.'"),
    ("path as name", service(name="../web"), "metadata.name must be of a-z"),
    ("name of a list", service(name=["x"] * 1000), "Service shop/a value of type list: metadata.name must be a string"),
    ("port name", service({"ports": [{"name": "a\0b", "port": 80}]}), "spec.ports[0].name must be printable text"),
    ("huge number", service({"ports": [{"port": 10**5000}]}), "spec.ports[0].port must be between 1 and 65535"),
    ("no kind", {"metadata": {"name": "x"}}, "has no kind"),
    ("no name", {"apiVersion": "v1", "kind": "Service", "spec": {}}, "metadata.name is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("manifest", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_an_unusable_object_is_refused_by_name_and_field(manifest: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse(manifest)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "manifest",
    [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}},
        {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "x"}},
    ],
)
def test_other_peoples_kinds_are_passed_over(manifest: dict[str, Any]) -> None:
    assert parse(manifest) is None


def test_a_name_of_253_characters_and_a_hundred_ports_are_fine() -> None:
    ports = [{"name": f"p{number}", "port": 1000 + number} for number in range(100)]
    assert len(parsed_service({"ports": ports}, name="a" * 253).ports) == 100


@pytest.mark.parametrize(
    ("spec", "metadata"),
    [
        ({"type": "ExternalName", "clusterIP": ""}, {}),
        ({"clusterIP": "None"}, {}),
        ({"clusterIP": ""}, {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}),
        ({}, {"labels": {"service.kubernetes.io/service-proxy-name": ""}}),
    ],
)
def test_what_is_not_ours_to_proxy(spec: dict[str, Any], metadata: dict[str, Any]) -> None:
    assert not parsed_service(spec, **metadata).proxied


ENDPOINTS = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web"}}
LEADER = {"name": "scheduler", "annotations": {"control-plane.alpha.kubernetes.io/leader": "{}"}}


def test_endpoints_are_refused_with_what_to_write_instead() -> None:
    with pytest.raises(Refusal, match=r"^Endpoints default/web: .*EndpointSlice.*kubernetes\.io/service-name: web"):
        parse(ENDPOINTS)
    assert parse({**ENDPOINTS, "metadata": LEADER}) is None, "what a leader was elected by"
    assert parse({**ENDPOINTS, "apiVersion": "example.org/v1"}) is None, "somebody else's kind"


NOBODY_ALLOCATES = [
    ({"clusterIP": ""}, "write an address, or None"),
    ({"clusterIP": None}, "write an address, or None"),
]


@pytest.mark.parametrize(("spec", "words"), NOBODY_ALLOCATES)
def test_a_cluster_ip_that_nobody_allocates(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        parsed_service(spec)


MISTAKEN_PORTS = [
    ([{"port": 80}, {"port": 443}], r"ports\[0\]\.name is missing: each of several ports needs one"),
    ([{"name": "a", "port": 80}, {"port": 443}], r"ports\[1\]\.name is missing"),
    ([{"name": "a", "port": 80}, {"name": "a", "port": 443}], r"ports\[1\]\.name: a is the name of another port"),
    ([{"name": "a", "port": 53}, {"name": "a", "port": 53, "protocol": "UDP"}], "a is the name of another port"),
]


@pytest.mark.parametrize(("ports", "words"), MISTAKEN_PORTS)
def test_ports_that_slices_could_not_tell_apart_are_refused(ports: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        parsed_service({"ports": ports})
    assert parsed_service({"ports": [{"port": 80}]}).notes == ()


def test_numbers_that_are_there_twice_are_noted() -> None:
    ports = [
        {"name": "a", "port": 80, "nodePort": 30080},
        {"name": "b", "port": 80, "nodePort": 30081},
        {"name": "c", "port": 80, "protocol": "UDP", "nodePort": 30080},
        {"name": "d", "port": 81, "nodePort": 30080},
        {"name": "e", "port": 82},
        {"name": "f", "port": 83},
    ]
    assert parsed_service({"ports": ports}).notes == (
        "ports[1]: port 80/TCP is there twice; the last counts",
        "ports[3]: nodePort 30080/TCP is there twice; the last counts",
    )


WISHES: list[tuple[dict[str, Any], list[dict[str, str]], int]] = [
    ({"type": "LoadBalancer", "loadBalancerIP": "198.51.100.9"}, [], 1),
    ({"type": "LoadBalancer", "loadBalancerIP": "198.51.100.9"}, [{"hostname": "lb.example.org"}], 0),
    ({"type": "LoadBalancer", "loadBalancerIP": "198.51.100.9"}, [{"ip": "198.51.100.9"}], 0),
    ({"type": "LoadBalancer"}, [], 0),
    ({"type": "ClusterIP", "loadBalancerIP": "198.51.100.9"}, [], 0),
]


@pytest.mark.parametrize(("spec", "ingress", "notes"), WISHES)
def test_a_wish_for_an_address_that_nobody_gave_is_noted(
    spec: dict[str, Any], ingress: list[dict[str, str]], notes: int
) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"clusterIP": "10.96.0.5", "ports": [{"port": 80}], **spec},
        "status": {"loadBalancer": {"ingress": ingress}},
    }
    made = parse(manifest)
    assert isinstance(made, Service)
    assert len([note for note in made.notes if note.startswith("loadBalancerIP: nobody")]) == notes


def test_a_node_port_that_nobody_allocates_is_noted() -> None:
    ports = [{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30081}]
    assert parsed_service({"type": "NodePort", "ports": ports}).notes == (
        "ports[0] has no nodePort, and nobody allocates one here: write a number",
    )
    assert parsed_service({"type": "LoadBalancer", "ports": ports}).notes == ()


def test_values_of_a_family_that_the_service_lacks_are_left_out_and_noted() -> None:
    obj = parsed_service(
        {
            "type": "LoadBalancer",
            "externalIPs": ["198.51.100.61", "2001:db8:e::61", "nonsense"],
            "loadBalancerSourceRanges": [" 203.0.113.0/24 ", "2001:db8::/32", "junk", 7, None, "10.0.0.0/" + LONG],
        }
    )
    assert [format_address(ip) for ip in obj.external_ips] == ["198.51.100.61"]
    assert [str(prefix) for prefix in obj.source_ranges] == ["203.0.113.0/24"]
    assert len(obj.notes) == 7
    assert max(map(len, obj.notes)) < 200


@pytest.mark.parametrize(
    ("spec", "cluster_ips", "notes"),
    [
        ({"clusterIPs": ["10.96.0.5", "fd00::5"], "ipFamilies": ["IPv4", "IPv6"]}, ["10.96.0.5", "fd00::5"], 0),
        ({"clusterIPs": ["fd00::5", "10.96.0.5"], "ipFamilies": ["IPv6", "IPv4"]}, ["fd00::5", "10.96.0.5"], 0),
        ({"ipFamilies": ["IPv4"]}, ["10.96.0.5"], 0),
        ({"clusterIPs": ["10.96.0.5", "fd00::5"], "ipFamilies": ["IPv4"]}, ["10.96.0.5"], 1),
        ({"clusterIPs": ["10.96.0.5", "fd00::5"]}, ["10.96.0.5"], 1),
        ({"clusterIP": "fd00::5", "clusterIPs": ["fd00::5", "10.96.0.5"]}, ["fd00::5"], 1),
        ({"clusterIPs": ["10.96.0.5", "fd00::5"], "ipFamilies": ["IPv6", "IPv4"]}, [], 2),
    ],
)
def test_families_say_which_cluster_ips_count(spec: dict[str, Any], cluster_ips: list[str], notes: int) -> None:
    obj = parsed_service(spec)
    assert [format_address(ip) for ip in obj.cluster_ips] == cluster_ips
    assert len(obj.notes) == notes


def test_addresses_of_no_one_place_are_left_out_and_noted() -> None:
    obj = parsed_service({"externalIPs": ["0.0.0.0", "127.0.0.1", "255.255.255.255", "224.0.0.1", "198.51.100.61"]})
    assert [format_address(ip) for ip in obj.external_ips] == ["198.51.100.61"]
    assert len(obj.notes) == 4


def test_only_addresses_in_mode_vip_are_ours() -> None:
    manifest = service({"type": "LoadBalancer"})
    manifest["status"] = {
        "loadBalancer": {
            "ingress": [
                {"ip": "198.51.100.1"},
                {"ip": "198.51.100.2", "ipMode": "VIP"},
                {"ip": "198.51.100.3", "ipMode": "Proxy"},
                {"hostname": "lb.example.org"},
            ]
        }
    }
    obj = parse(manifest)
    assert isinstance(obj, Service)
    assert [format_address(ip) for ip in obj.load_balancer_ips] == ["198.51.100.1", "198.51.100.2"]


@pytest.mark.parametrize(
    ("conditions", "ready", "serving", "terminating"),
    [
        (None, True, True, False),
        ({}, True, True, False),
        ({"ready": None, "serving": None, "terminating": None}, True, True, False),
        ({"ready": False, "terminating": True}, False, True, True),
        ({"ready": False, "serving": False}, False, False, False),
    ],
)
def test_missing_conditions_have_their_defaults(conditions: Any, ready: bool, serving: bool, terminating: bool) -> None:
    endpoint = parsed_slice(endpoints=[{"addresses": ["10.244.1.5"], "conditions": conditions}]).endpoints[0]
    assert (endpoint.ready, endpoint.serving, endpoint.terminating) == (ready, serving, terminating)


def test_one_bad_endpoint_costs_only_itself() -> None:
    obj = parsed_slice(
        endpoints=[
            {"addresses": ["bad"]},
            {"addresses": []},
            {"addresses": ["fd00::1"]},
            {"addresses": ["10.244.1.6"]},
            {"addresses": ["127.0.0.1"]},
            {"addresses": [["10.244.1.7"]]},
        ]
    )
    assert [format_address(endpoint.ip) for endpoint in obj.endpoints] == ["10.244.1.6"]
    assert len(obj.notes) == 5


@pytest.mark.parametrize(
    ("spec", "external_local"),
    [
        ({"type": "NodePort"}, True),
        ({"type": "LoadBalancer"}, True),
        ({"type": "ClusterIP", "externalIPs": ["198.51.100.9"]}, True),
        ({"type": "ClusterIP", "externalIPs": ["of no use"]}, True),
        ({"type": "ClusterIP"}, False),
    ],
)
def test_addresses_count_whatever_the_type(spec: dict[str, Any], external_local: bool) -> None:
    manifest = service({**spec, "externalTrafficPolicy": "Local", "ports": [{"port": 80, "nodePort": 30080}]})
    manifest["status"] = {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}]}}
    obj = parse(manifest)
    assert isinstance(obj, Service)
    assert [format_address(ip) for ip in obj.load_balancer_ips] == ["198.51.100.1"]
    assert [port.node_port for port in obj.ports] == [30080]
    assert obj.external_local is external_local


@pytest.mark.parametrize(
    "ports", [None, [], [{"name": "http"}], [{"name": "http", "port": None}], [{"name": None, "port": 80}]]
)
def test_ports_without_a_name_or_number_are_none(ports: Any) -> None:
    assert parsed_slice(ports=ports).ports == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"addressType": "FQDN", "endpoints": [{"addresses": ["backend.example.org"]}]},
        {"metadata": {"namespace": "shop", "name": "web-1"}},
        {
            "metadata": {
                "namespace": "shop",
                "name": "web-1",
                "labels": {"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""},
            }
        },
    ],
)
def test_slices_that_are_nobodys(fields: dict[str, Any]) -> None:
    assert parsed_slice(**fields).service == ""


def test_a_node_has_one_address_a_family_and_no_placeholder() -> None:
    obj = parse(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "Rack_7.Row-B"}},
            "spec": {"podCIDRs": ["10.244.1.0/24", "bad"], "taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]},
            "status": {
                "addresses": [
                    {"type": "ExternalIP", "address": "203.0.113.1"},
                    {"type": "InternalIP", "address": "192.0.2.11"},
                    {"type": "InternalIP", "address": "192.0.2.12"},
                    {"type": "InternalIP", "address": "::1"},
                    {"type": "Hostname", "address": "n1"},
                ]
            },
        }
    )
    assert isinstance(obj, Node)
    assert [format_address(ip) for ip in obj.addresses] == ["192.0.2.11"]
    assert (obj.zone, obj.eligible, len(obj.notes)) == ("Rack_7.Row-B", False, 1)


def test_lists_are_unrolled_and_their_items_get_a_kind() -> None:
    document = {"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "a"}}]}
    nested = {"apiVersion": "v1", "kind": "List", "items": [document, {"apiVersion": "v1", "kind": "Node"}]}
    assert [(item["apiVersion"], item["kind"]) for item in expand(nested)] == [("v1", "Service"), ("v1", "Node")]
    assert list(expand(None)) == []
    assert list(expand("text")) == ["text"]


def test_lists_within_lists_are_unrolled_in_order_whatever_their_depth() -> None:
    document: Any = service(name="last")
    for number in range(5000):
        document = {"kind": "List", "items": [None, number, document]}
    items = list(expand(document))
    assert items[:3] == [4999, 4998, 4997]
    assert items[-1]["metadata"]["name"] == "last"


def test_of_what_is_others_only_the_name_is_left() -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "a", "labels": {"b": "c"}},
        "data": {"d": "ZQ=="},
    }
    named = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "", "name": "a"}}
    service = {"apiVersion": "v1", "kind": "service", "metadata": {"name": "a"}, "spec": {}}
    assert without_others_content(secret) == named
    assert without_others_content(service) == service
    listed = {"apiVersion": "v1", "kind": "List", "items": [secret, service, "no object"]}
    assert list(expand(without_others_content(listed))) == [named, service, "no object"]
    typed = {"apiVersion": "v1", "kind": "SecretList", "items": [{"metadata": {"name": "a"}, "data": {"d": "ZQ=="}}]}
    assert without_others_content(typed) == named
    assert list(expand(without_others_content({"kind": "List", "items": ["no object"]}))) == ["no object"]
