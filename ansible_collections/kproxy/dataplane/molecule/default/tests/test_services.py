"""What the default scenario promises of each node: no kube-proxy, a running kproxyd, and connections that arrive.

The expected endpoints come from the manifests alone, not from anything the product says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[6]
# Other scenarios run these tests on manifests of their own.
SERVICES = Path(os.environ.get("KPROXY_SERVICES") or ROOT / "examples/services")
OBJECTS = [document for path in sorted(SERVICES.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())]
NODES = {item["metadata"]["name"]: item for item in OBJECTS if item["kind"] == "Node"}
DIAL = "python3 /opt/kproxy-lab/dial.py"
# With 60 even draws from three endpoints, one stays undrawn in fewer than one run of ten thousand million.
DRAWS = 60


class Frontend(NamedTuple):
    """One address a client dials, and the pods behind it."""

    service: str
    address: str
    port: int
    protocol: str
    pods: frozenset[str]
    affinity: bool


def pods_behind(service: dict[str, Any], port: str, family: str, node: str | None = None) -> frozenset[str]:
    """Return the names of a service port's pods, all of them or those on one node."""
    return frozenset(
        endpoint["targetRef"]["name"]
        for item in OBJECTS
        if item["kind"] == "EndpointSlice"
        and item["addressType"] == family
        and item["metadata"]["namespace"] == service["metadata"]["namespace"]
        and item["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
        and port in [entry["name"] for entry in item["ports"]]
        for endpoint in item["endpoints"]
        if node in (None, endpoint["nodeName"])
    )


def services() -> Iterator[dict[str, Any]]:
    yield from (item for item in OBJECTS if item["kind"] == "Service")


def cluster_frontends() -> Iterator[Frontend]:
    """Yield what pods and nodes dial: ClusterIPs, external and load balancer addresses; all lead to every pod."""
    for service in services():
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", [])
        external = service["spec"].get("externalIPs", [])
        for address in [*service["spec"]["clusterIPs"], *external, *(entry["ip"] for entry in ingress)]:
            family = "IPv6" if ":" in address else "IPv4"
            for port in service["spec"]["ports"]:
                yield Frontend(
                    f"{service['metadata']['name']}:{port['name']}",
                    address,
                    port["port"],
                    port["protocol"],
                    pods_behind(service, port["name"], family),
                    service["spec"].get("sessionAffinity") == "ClientIP",
                )


@cache
def dial_all(host: Host, frontends: tuple[Frontend, ...], pod: str | None = None) -> list[dict[str, Any]]:
    """Dial frontends from a node or from a pod on it; once per origin, as reaching a node takes longest."""
    targets = json.dumps([[item.protocol, item.address, item.port, DRAWS] for item in frontends])
    where = f"ip netns exec {pod} " if pod else ""
    seen: list[dict[str, Any]] = json.loads(host.check_output(f"echo '{targets}' | {where}{DIAL} --batch"))
    return seen


def dial(host: Host, frontend: Frontend, among: tuple[Frontend, ...], pod: str | None = None) -> dict[str, Any]:
    """Return what dialling one of these frontends met."""
    return dial_all(host, among, pod)[among.index(frontend)]


@cache
def first_pod(host: Host) -> str | None:
    """Return the name of some pod on the node, if it runs any."""
    pods = json.loads(host.check_output("python3 /opt/kproxy-lab/pod.py list"))
    return pods[0]["name"] if pods else None


def check(seen: dict[str, Any], frontend: Frontend) -> None:
    """Compare who answered with who should have."""
    answered = {answer["pod"] for answer in seen["answers"]}
    if not frontend.pods:
        assert set(seen["errors"]) == {"refused"}
        return
    assert seen["errors"] == {}
    if frontend.affinity:
        assert len(answered) == 1
        assert answered <= frontend.pods
    else:
        assert answered == frontend.pods


def node_port(service_name: str, port: int, local: bool) -> Iterator[Frontend]:
    """Yield a NodePort on each node's address; under the Local policy only that node's own pods are behind it."""
    (service,) = [item for item in services() if item["metadata"]["name"] == service_name]
    for name, node in NODES.items():
        pods = pods_behind(service, "http", "IPv4", name if local else None)
        yield Frontend(name, node["status"]["addresses"][0]["address"], port, "TCP", pods, False)


CLUSTER = tuple(cluster_frontends())
NODE_PORTS = tuple(node_port("frontend", 30080, local=False))
LOCAL_NODE_PORTS = tuple(node_port("inference", 30800, local=True))
RULE_LISTINGS = ["iptables-legacy-save", "ip6tables-legacy-save", "iptables-nft-save", "nft list ruleset"]


def named(item: Frontend) -> str:
    return f"{item.service}-{item.address}"


@pytest.mark.parametrize("command", RULE_LISTINGS)
def test_no_chain_of_kube_proxy(host: Host, command: str) -> None:
    assert re.findall(r"KUBE-\S+|table \S+ kube-proxy", host.check_output(command)) == []


def test_kproxyd_runs_and_starts_at_boot(host: Host) -> None:
    service = host.service("kproxyd")
    assert service.is_running
    assert service.is_enabled


@pytest.mark.parametrize("path", ["healthz", "livez"])
def test_kproxyd_says_it_is_well(host: Host, path: str) -> None:
    assert host.check_output(f"curl -s -o /dev/null -w %{{http_code}} http://127.0.0.1:10256/{path}") == "200"


@pytest.mark.parametrize("frontend", CLUSTER, ids=named)
def test_from_the_node(host: Host, frontend: Frontend) -> None:
    check(dial(host, frontend, CLUSTER), frontend)


@pytest.mark.parametrize("frontend", CLUSTER, ids=named)
def test_from_a_pod(host: Host, frontend: Frontend) -> None:
    pod = first_pod(host)
    if pod is None:
        assert host.check_output("hostname") in ("cp-2", "cp-3"), "every other node runs pods"
        return
    check(dial(host, frontend, CLUSTER, pod), frontend)


@pytest.mark.parametrize("frontend", NODE_PORTS, ids=named)
def test_node_port_of_every_node(host: Host, frontend: Frontend) -> None:
    check(dial(host, frontend, NODE_PORTS), frontend)


@pytest.mark.parametrize("frontend", LOCAL_NODE_PORTS, ids=named)
def test_local_policy_keeps_the_client_and_the_node(host: Host, frontend: Frontend) -> None:
    here = host.check_output("hostname")
    seen = dial(host, frontend, LOCAL_NODE_PORTS)
    if frontend.service == here:
        (service,) = [item for item in services() if item["metadata"]["name"] == "inference"]
        check(seen, frontend._replace(pods=pods_behind(service, "http", "IPv4")))
    elif not frontend.pods:
        assert (seen["answers"], seen["errors"]) == ([], {"timeout": 1})
    else:
        check(seen, frontend)
        own_address = NODES[here]["status"]["addresses"][0]["address"]
        assert {answer["peer"] for answer in seen["answers"]} == {own_address}
