"""The service table says of random objects and packets what kube-proxy's rules would do (kube_proxy_rules.py)."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterable
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import Packet, simulate
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address, parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends import kube_proxy_rules
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.random_objects import (
    FAMILIES,
    NODE,
    NODE_ADDRESSES,
    POD_RANGES,
    PRIMARY,
    SERVICE_RANGES,
    RandomCluster,
    address,
    pod,
)

PROTOCOLS = {"TCP": 6, "UDP": 17, "SCTP": 132}
OUTSIDERS = {"IPv4": ("203.0.113.7", "203.0.113.200"), "IPv6": ("2001:db8:9::7", "2001:db8:7::7")}


@pytest.mark.parametrize("seed", range(16))
def test_table_agrees_with_kube_proxys_rules(seed: int) -> None:
    cluster, choose = RandomCluster(seed), random.Random(seed)
    manifests = cluster.manifests()
    pods = choose.choice([0, 1, None])
    zone = choose.choice(["", "a", "b"])
    everywhere, masquerade_all, cidr_known = (choose.random() < 0.3 for _setting in range(3))
    table = ServiceTable(
        ProxyConfig.from_mapping(
            {
                "nodeName": NODE,
                "clusterCIDR": [] if pods is None else [POD_RANGES[family][pods] for family in FAMILIES],
                "nodePortAddresses": ["0.0.0.0/0", "::/0"] if everywhere else ["primary"],
                "masqueradeAll": masquerade_all,
            }
        )
    )
    known: list[dict[str, Any]] = [*manifests, cluster.node(zone)]
    if cidr_known:
        known.append(cluster.service_cidr())
    choose.shuffle(known)
    table.apply([Upsert(obj) for obj in map(parse, known) if obj is not None])
    for family in FAMILIES:
        node = kube_proxy_rules.Node(
            NODE,
            zone,
            PRIMARY[family],
            NODE_ADDRESSES[family],
            None if pods is None else ipaddress.ip_network(POD_RANGES[family][pods]),
            masquerade_all,
            ipaddress.ip_network(SERVICE_RANGES[family]) if cidr_known else None,
            everywhere,
        )
        rules = kube_proxy_rules.Rules(manifests, node, family)
        _compare(table, rules, family, cluster.destinations(choose, family))


def _compare(
    table: ServiceTable, rules: kube_proxy_rules.Rules, family: str, destinations: Iterable[tuple[str, str, int]]
) -> None:
    addresses = NODE_ADDRESSES[family]
    local = {parse_address(ip) for ip in addresses}
    pods = [pod(family, 1, 9), pod(family, 1, 2), pod(family, 2, 2), pod(family, 3, 9)]
    sources = [*pods, *addresses, *OUTSIDERS[family], address("external", family, 2)]
    for destination, protocol, port in destinations:
        for source in sources:
            from_node = source in addresses
            interface = "" if from_node else "eth0"
            packet = Packet(parse_address(source), parse_address(destination), PROTOCOLS[protocol], port, interface)
            outcome = simulate(table, packet, local)
            got = {
                (format_address(endpoint.ip), endpoint.port): endpoint in outcome.masqueraded
                for endpoint in outcome.endpoints
            }
            wanted = rules.outcome(source, destination, protocol, port, from_node)
            assert (outcome.verdict, got) == wanted, (source, destination, protocol, port, outcome.reason)
