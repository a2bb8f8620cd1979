"""Which UDP flows go: one row, one flow."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.flows import UdpFlow, is_stale
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import parse_address
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)

NODE = "192.0.2.11"
DNS_PORT = {"name": "dns", "port": 53, "protocol": "UDP"}
SLICE_PORTS = [{"name": "dns", "port": 5353, "protocol": "UDP"}]
ROWS = [
    # dialled, answered by, replied, stale
    ("a serving endpoint", "10.96.0.5:53", "10.244.1.5:5353", True, False),
    ("an endpoint that is gone", "10.96.0.5:53", "10.244.1.6:5353", True, True),
    ("the endpoint's old port", "10.96.0.5:53", "10.244.1.5:53", True, True),
    ("never translated, and there are endpoints now", "10.96.0.5:53", "10.96.0.5:53", False, True),
    ("another port of the address", "10.96.0.5:54", "10.244.1.6:5353", True, False),
    ("a NodePort of this node", f"{NODE}:30053", "10.244.1.6:5353", True, True),
    ("the number of a NodePort on another host", "198.51.100.77:30053", "198.51.100.77:30053", False, False),
    ("nobody's address", "192.0.2.200:53", "192.0.2.200:53", False, False),
    ("no endpoint left, and nobody ever answered", "10.96.0.6:53", "10.244.1.9:5353", False, True),
    ("no endpoint left, but somebody answered", "10.96.0.6:53", "10.244.1.9:5353", True, False),
    ("no endpoint yet, not translated", "10.96.0.6:53", "10.96.0.6:53", False, False),
]


@pytest.mark.parametrize(
    ("dialled", "answered", "replied", "stale"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_stale_flows(dialled: str, answered: str, replied: bool, stale: bool) -> None:
    table = ServiceTable(config())
    table.apply(
        upserts(
            service("dns", type="NodePort", ports=[{**DNS_PORT, "nodePort": 30053}]),
            endpoints("10.244.1.5", service="dns", ports=SLICE_PORTS),
            service("idle", clusterIP="10.96.0.6", ports=[DNS_PORT]),
        )
    )
    (destination, port), (source, source_port) = (text.split(":") for text in (dialled, answered))
    flow = UdpFlow(parse_address(destination), int(port), parse_address(source), int(source_port), replied)
    assert is_stale(table, flow, {parse_address(NODE)}) is stale
