# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which row decides where an address and a NodePort of the same number meet, and where nothing does."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import Packet, simulate
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address, parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)

NODE, OUTSIDER = "192.0.2.11", "203.0.113.9"
PORT = {"name": "http", "port": 1, "nodePort": 80}
BEHIND_NODE_PORT, BEHIND_ADDRESS = "10.244.1.1", "10.244.1.2"

MEETINGS = [
    ("endpoints on this node", "Local", [f"{BEHIND_ADDRESS}@n1"], OUTSIDER, BEHIND_ADDRESS),
    ("endpoints elsewhere, Local policy", "Local", [BEHIND_ADDRESS], OUTSIDER, "drop"),
    ("endpoints elsewhere, from the node", "Local", [BEHIND_ADDRESS], NODE, BEHIND_ADDRESS),
    ("endpoints elsewhere, Cluster policy", "Cluster", [BEHIND_ADDRESS], OUTSIDER, BEHIND_ADDRESS),
    ("no endpoints", "Local", [], OUTSIDER, BEHIND_NODE_PORT),
]


def ask(source: str, destination: str, port: int, *manifests: dict[str, Any], local: tuple[str, ...] = (NODE,)) -> str:
    table = ServiceTable(config(nodeIPs=[NODE]))
    table.apply(upserts(*manifests))
    interface = "" if source in local else "eth0"
    packet = Packet(parse_address(source), parse_address(destination), TCP, port, interface)
    outcome = simulate(table, packet, {parse_address(address) for address in local})
    return format_address(outcome.endpoints[0].ip) if outcome.endpoints else outcome.verdict


@pytest.mark.parametrize(
    ("policy", "addresses", "source", "outcome"), [row[1:] for row in MEETINGS], ids=[str(row[0]) for row in MEETINGS]
)
def test_an_external_ip_before_a_node_port(policy: str, addresses: list[str], source: str, outcome: str) -> None:
    node_port = service("a", clusterIP="10.96.0.1", type="NodePort", ports=[PORT])
    external = service("b", clusterIP="10.96.0.2", externalIPs=[NODE], externalTrafficPolicy=policy)
    manifests = [node_port, external, endpoints(BEHIND_NODE_PORT, service="a"), endpoints(*addresses, service="b")]
    assert ask(source, NODE, 80, *manifests) == outcome


@pytest.mark.parametrize(("source", "outcome"), [(OUTSIDER, "pass"), (NODE, "reject")])
def test_another_port_of_a_cluster_ip_that_the_node_holds(source: str, outcome: str) -> None:
    assert ask(source, "10.96.0.5", 9253, service(), local=(NODE, "10.96.0.5")) == outcome
