# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Ranges and addresses that make a cluster, those that do not, and the first Services of it."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap.network import NetworkError, ip_versions
from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap.preload import first_services

S4, S6, P4, P6 = "10.96.0.0/12", "fd00:10:96::/108", "10.244.0.0/16", "fd00:10:244::/48"
N4, N6 = "192.0.2.11", "2001:db8::11"

FITTING = [
    ("IPv4", [S4], [P4], [N4], [4]),
    ("IPv6", [S6], [P6], [N6], [6]),
    ("both", [S4, S6], [P4, P6], [N4, N6], [4, 6]),
    ("both, IPv6 first", [S6, S4], [P6, P4], [N6, N4], [6, 4]),
]


@pytest.mark.parametrize(
    ("services", "pods", "node", "versions"), [row[1:] for row in FITTING], ids=[row[0] for row in FITTING]
)
def test_fitting(services: list[str], pods: list[str], node: list[str], versions: list[int]) -> None:
    assert ip_versions(services, pods, node) == versions


MISFITS = [
    ("no range", [], [P4], [N4], "give one range, or one of each IP version, not none"),
    ("two of one version", [S4, "10.112.0.0/12"], [P4], [N4], "one of each IP version"),
    ("no range at all", ["10.96.0.0"], ["pods"], [N4], "'pods' does not appear"),
    ("host bits", ["10.96.0.1/12"], [P4], [N4], "host bits set"),
    ("pods of one version", [S4, S6], [P4], [N4, N6], "not of the same IP versions"),
    ("another order", [S4, S6], [P6, P4], [N4, N6], "in the same order"),
    ("overlap", ["10.240.0.0/12"], [P4], [N4], "overlap"),
    ("a node among the pods", [S4], ["192.0.0.0/16"], [N4], "192.0.2.11 is inside the pod range 192.0.0.0/16"),
    ("a node among the Services", ["192.0.2.0/24"], [P4], [N4], "inside the service range 192.0.2.0/24"),
    ("a node without IPv6", [S4, S6], [P4, P6], [N4], "give one of IPv4, then one of IPv6"),
    ("a node with its addresses swapped", [S4, S6], [P4, P6], [N6, N4], "give one of IPv4, then one of IPv6"),
    ("a node by name", [S4], [P4], ["cp-1.example.org"], "'cp-1.example.org' is no IP address"),
]


@pytest.mark.parametrize(
    ("services", "pods", "node", "words"), [row[1:] for row in MISFITS], ids=[row[0] for row in MISFITS]
)
def test_misfits(services: list[str], pods: list[str], node: list[str], words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        ip_versions(services, pods, node)


def test_the_first_services_have_the_primary_version_alone() -> None:
    kubernetes, endpoints, dns = first_services([S6, S4], [N6, "2001:db8::12"], port=8443)
    assert kubernetes["spec"]["clusterIPs"] == ["fd00:10:96::1"]
    assert dns["spec"]["clusterIPs"] == ["fd00:10:96::a"]
    assert {item["spec"]["ipFamilyPolicy"] for item in (kubernetes, dns)} == {"SingleStack"}
    assert endpoints["addressType"] == "IPv6"
    assert [item["addresses"] for item in endpoints["endpoints"]] == [[N6], ["2001:db8::12"]]
    assert {port["port"] for port in endpoints["ports"]} == {8443}


NO_FIRST_SERVICES = [
    ("no API server", [S4], [], "no API server"),
    ("a name", [S4], ["cp-1"], "'cp-1' is no IP address"),
    ("of the other version", [S6, S4], [N4], "192.0.2.11: not of the IP version of the primary service range"),
    ("a tiny range", ["10.96.0.0/30"], [N4], "too small"),
]


@pytest.mark.parametrize(
    ("services", "servers", "words"), [row[1:] for row in NO_FIRST_SERVICES], ids=[row[0] for row in NO_FIRST_SERVICES]
)
def test_no_first_services(services: list[str], servers: list[str], words: str) -> None:
    with pytest.raises(NetworkError, match=words):
        first_services(services, servers)
