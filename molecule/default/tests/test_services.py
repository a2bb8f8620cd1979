"""What the default scenario promises of each node: no kube-proxy, a running kproxyd, and connections that arrive.

The expected endpoints come from the manifests alone, not from anything the product says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[3]
OBJECTS = [
    document
    for path in sorted((ROOT / "examples/services").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
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
    """Yield what pods and nodes dial: ClusterIPs and load balancer addresses; both lead to every pod from inside."""
    for service in services():
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", [])
        for address in [*service["spec"]["clusterIPs"], *(entry["ip"] for entry in ingress)]:
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


def dial(host: Host, frontend: Frontend, pod: str | None = None, count: int = DRAWS) -> dict[str, Any]:
    """Dial a frontend from a node or from a pod on it."""
    where = f"ip netns exec {pod} " if pod else ""
    command = f"{where}{DIAL} {frontend.protocol} {frontend.address} {frontend.port} {count}"
    seen: dict[str, Any] = json.loads(host.check_output(command))
    return seen


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


CLUSTER_FRONTENDS = [pytest.param(item, id=f"{item.service}-{item.address}") for item in cluster_frontends()]


@pytest.mark.parametrize("command", ["iptables-legacy-save", "ip6tables-legacy-save", "iptables-nft-save", "nft list ruleset"])
def test_no_chain_of_kube_proxy(host: Host, command: str) -> None:
    assert re.findall(r"KUBE-\S+|table \S+ kube-proxy", host.check_output(command)) == []


def test_kproxyd_runs_and_starts_at_boot(host: Host) -> None:
    service = host.service("kproxyd")
    assert service.is_running
    assert service.is_enabled


@pytest.mark.parametrize("path", ["healthz", "livez"])
def test_kproxyd_says_it_is_well(host: Host, path: str) -> None:
    assert host.check_output(f"curl -s -o /dev/null -w %{{http_code}} http://127.0.0.1:10256/{path}") == "200"


@pytest.mark.parametrize("frontend", CLUSTER_FRONTENDS)
def test_from_the_node(host: Host, frontend: Frontend) -> None:
    check(dial(host, frontend), frontend)


@pytest.mark.parametrize("frontend", CLUSTER_FRONTENDS)
def test_from_a_pod(host: Host, frontend: Frontend) -> None:
    pods = json.loads(host.check_output("python3 /opt/kproxy-lab/pod.py list"))
    if not pods:
        assert host.check_output("hostname") in ("cp-2", "cp-3"), "only these two run no pod"
        return
    check(dial(host, frontend, pods[0]["name"]), frontend)


def node_address(name: str) -> str:
    """Return the IPv4 address of a node."""
    addresses: list[dict[str, str]] = NODES[name]["status"]["addresses"]
    return addresses[0]["address"]


@pytest.mark.parametrize("target", sorted(NODES))
def test_node_port_of_every_node(host: Host, target: str) -> None:
    (service,) = [item for item in services() if item["metadata"]["name"] == "frontend"]
    frontend = Frontend("frontend", node_address(target), 30080, "TCP", pods_behind(service, "http", "IPv4"), False)
    check(dial(host, frontend), frontend)


@pytest.mark.parametrize("target", sorted(NODES))
def test_local_policy_keeps_the_client_and_the_node(host: Host, target: str) -> None:
    (service,) = [item for item in services() if item["metadata"]["name"] == "inference"]
    own = host.check_output("hostname") == target
    pods = pods_behind(service, "http", "IPv4", None if own else target)
    frontend = Frontend("inference", node_address(target), 30800, "TCP", pods, False)
    seen = dial(host, frontend, count=DRAWS if pods else 1)
    if not pods:
        assert (seen["answers"], seen["errors"]) == ([], {"timeout": 1})
        return
    check(seen, frontend)
    if not own:
        assert {answer["peer"] for answer in seen["answers"]} == {node_address(host.check_output("hostname"))}
