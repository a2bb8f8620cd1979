"""What both IP versions promise: the same Services by every kind of address, from node and pod, and none too many."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, NamedTuple

import pytest
from testinfra.host import Host

DIAL = "python3 /opt/kproxy-lab/dial.py --batch"
# With 50 even draws from two endpoints, one stays undrawn in one run of 500 million million.
DRAWS = 50

WEB = frozenset({"web-a", "web-b"})
SIX = frozenset({"six-a", "six-b"})


class Frontend(NamedTuple):
    """One address a client dials, and the pods behind it. No pods: refused."""

    name: str
    protocol: str
    address: str
    port: int
    pods: frozenset[str]


FRONTENDS = (
    Frontend("cluster IP, IPv4", "TCP", "10.96.40.10", 80, WEB),
    Frontend("cluster IP, IPv6", "TCP", "fd00:10:96::4010", 80, WEB),
    Frontend("cluster IP, IPv4, UDP", "UDP", "10.96.40.10", 53, WEB),
    Frontend("cluster IP, IPv6, UDP", "UDP", "fd00:10:96::4010", 53, WEB),
    Frontend("NodePort, IPv4", "TCP", "10.77.0.21", 30081, WEB),
    Frontend("NodePort, IPv6", "TCP", "fd00:77::21", 30081, WEB),
    Frontend("NodePort of the other node, IPv4", "TCP", "10.77.0.22", 30081, WEB),
    Frontend("NodePort of the other node, IPv6", "TCP", "fd00:77::22", 30081, WEB),
    Frontend("NodePort, IPv4, UDP", "UDP", "10.77.0.21", 30053, WEB),
    Frontend("NodePort, IPv6, UDP", "UDP", "fd00:77::21", 30053, WEB),
    Frontend("external IP, IPv4", "TCP", "203.0.113.40", 80, WEB),
    Frontend("external IP, IPv6", "TCP", "2001:db8:113::40", 80, WEB),
    Frontend("IPv6 first: cluster IP, IPv6", "TCP", "fd00:10:96::4020", 80, WEB),
    Frontend("IPv6 first: cluster IP, IPv4", "TCP", "10.96.40.20", 80, WEB),
    Frontend("IPv6 first: NodePort, IPv6", "TCP", "fd00:77::21", 30082, WEB),
    Frontend("IPv6 first: NodePort, IPv4", "TCP", "10.77.0.21", 30082, WEB),
    Frontend("IPv6 first: load balancer IP, IPv6", "TCP", "2001:db8:51::40", 80, WEB),
    Frontend("IPv6 first: load balancer IP, IPv4", "TCP", "198.51.100.40", 80, WEB),
    Frontend("IPv6 alone: cluster IP", "TCP", "fd00:10:96::4030", 80, SIX),
    Frontend("IPv6 alone: NodePort", "TCP", "fd00:77::21", 30083, SIX),
    Frontend("IPv6 alone: external IP", "TCP", "2001:db8:113::60", 80, SIX),
    Frontend("IPv6 alone: its NodePort by IPv4", "TCP", "10.77.0.21", 30083, frozenset()),
    Frontend("another port of a cluster IP, IPv4", "TCP", "10.96.40.10", 81, frozenset()),
    Frontend("another port of a cluster IP, IPv6", "TCP", "fd00:10:96::4010", 81, frozenset()),
)
#: Where a pod of this Service may be led to itself.
HAIRPINS = tuple(frontend for frontend in FRONTENDS if frontend.pods == WEB)
RULE_LISTINGS = ["iptables-legacy-save", "ip6tables-legacy-save", "iptables-nft-save", "ip6tables-nft-save"]


def named(item: Frontend) -> str:
    return item.name


@cache
def dial_all(host: Host, pod: str) -> list[dict[str, Any]]:
    """Dial everything from a node (no pod), or from a pod on it; once per origin, as reaching a node takes longest."""
    targets = json.dumps([[item.protocol, item.address, item.port, DRAWS] for item in FRONTENDS])
    where = f"ip netns exec {pod} " if pod else ""
    seen: list[dict[str, Any]] = json.loads(host.check_output(f"echo '{targets}' | {where}{DIAL}"))
    return seen


def own_pod(host: Host) -> str:
    """Return the name of the pod on this node that is behind the Services of both versions."""
    return {"gpu-a": "web-a", "gpu-b": "web-b"}[host.check_output("hostname")]


def check(seen: dict[str, Any], frontend: Frontend) -> None:
    """Compare who answered with who should have."""
    if frontend.pods:
        assert seen["errors"] == {}
    else:
        assert set(seen["errors"]) == {"refused"}
    assert {answer["pod"] for answer in seen["answers"]} == frontend.pods


@pytest.mark.parametrize("frontend", FRONTENDS, ids=named)
def test_from_the_node(host: Host, frontend: Frontend) -> None:
    check(dial_all(host, "")[FRONTENDS.index(frontend)], frontend)


@pytest.mark.parametrize("frontend", FRONTENDS, ids=named)
def test_from_a_pod(host: Host, frontend: Frontend) -> None:
    check(dial_all(host, own_pod(host))[FRONTENDS.index(frontend)], frontend)


@pytest.mark.parametrize("frontend", HAIRPINS, ids=named)
def test_a_pod_reaches_itself_and_does_not_see_itself(host: Host, frontend: Frontend) -> None:
    pod = own_pod(host)
    answers = [item for item in dial_all(host, pod)[FRONTENDS.index(frontend)]["answers"] if item["pod"] == pod]
    assert answers, "it was never led to itself"
    # A kernel drops what comes from an address of its own, so the node has to stand in for the client.
    assert all(answer["peer"] != answer["address"] for answer in answers)


@pytest.mark.parametrize("family", ["ip", "ip6"])
def test_the_table_of_each_version_carries_services(host: Host, family: str) -> None:
    tables = host.check_output("nft list tables").splitlines()
    assert [line for line in tables if line.endswith(" kproxy")] == ["table ip kproxy", "table ip6 kproxy"]
    assert "elements" in host.check_output(f"nft list map {family} kproxy services")


@pytest.mark.parametrize("command", RULE_LISTINGS)
def test_no_chain_of_kube_proxy(host: Host, command: str) -> None:
    assert re.findall(r"KUBE-\S+", host.check_output(command)) == []
