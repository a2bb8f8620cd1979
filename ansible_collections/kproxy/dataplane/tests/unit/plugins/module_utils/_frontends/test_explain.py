# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A trace says why: who dials, what is asked on the way, which endpoints are left."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.explain import explain
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import Packet, simulate
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)

NODE, POD, OUTSIDER, VIP = "192.0.2.11", "10.244.1.9", "203.0.113.9", "198.51.100.10"
LOCAL: dict[str, Any] = {
    "type": "LoadBalancer",
    "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
    "externalTrafficPolicy": "Local",
    "ingress": [VIP],
    "loadBalancerSourceRanges": ["203.0.113.0/25", "10.244.0.0/16"],
}

WAYS = [
    (POD, VIP, 80, ["is a pod: its address is in 10.244.0.0/16", "admit it", "pods and the node reach every endpoint",
                    "2, of which 2 ready, 0 draining, 1 on this node", "sees the client's own address"]),
    (OUTSIDER, VIP, 80, ["is an outsider: pods are recognised by 10.244.0.0/16", "admit it",
                         "only endpoints of this node count for outsiders", "1 on this node",
                         "sees the client's own address"]),
    ("203.0.113.200", VIP, 80, ["is an outsider", "shut it out"]),
    (OUTSIDER, NODE, 30080, ["is an outsider", "30080 is a NodePort, which this address accepts",
                             "only endpoints of this node count", "1 on this node", "sees the client's own address"]),
    (OUTSIDER, "192.0.2.12", 30080, ["is an outsider", "which this address does not accept"]),
    (NODE, "10.96.0.5", 80, ["is this node itself", "2 ready", "masqueraded, so that"]),
    ("10.244.1.6", "10.96.0.5", 80, ["is a pod", "2 ready", "where the endpoint is the client itself"]),
    (OUTSIDER, "198.51.100.99", 80, ["is an outsider"]),
    (OUTSIDER, "10.96.0.5", 81, ["is an outsider", "have at 10.96.0.5: 10.96.0.5:80/TCP of shop/web:http/TCP"]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "destination", "port", "wanted"), WAYS)
def test_every_question_on_the_way_is_told(source: str, destination: str, port: int, wanted: list[str]) -> None:
    table = ServiceTable(config(nodeIPs=[NODE], clusterCIDR="10.244.0.0/16"))
    table.apply(upserts(service(**LOCAL), endpoints("10.244.2.5", "10.244.1.6@n1")))
    local = {parse_address(ip) for ip in (NODE, "192.0.2.12")}
    packet = Packet(parse_address(source), parse_address(destination), TCP, port, "" if source == NODE else "eth0")
    steps = explain(table, packet, simulate(table, packet, local), local)
    assert len(steps) == len(wanted), steps
    for step, words in zip(steps, wanted):
        assert words in step


def test_hints_and_missing_detection_are_told() -> None:
    table = ServiceTable(config(nodeIPs=[NODE], clusterCIDR="", zone="a"))
    hinted = endpoints("10.244.2.5", "10.244.2.6")
    for endpoint, zone in zip(hinted["endpoints"], "ab"):
        endpoint["hints"] = {"forZones": [{"name": zone}]}
    table.apply(upserts(service(sessionAffinity="ClientIP"), hinted))
    packet = Packet(parse_address(POD), parse_address("10.96.0.5"), TCP, 80, "veth1")
    steps = explain(table, packet, simulate(table, packet, ()), ())
    assert "nothing says how pods of IPv4 are recognised" in steps[0]
    assert "topology hints leave 1 of the ready ones (zone 'a')" in steps
    assert "sessionAffinity: a client that came within 10800 s stays on its endpoint" in steps
