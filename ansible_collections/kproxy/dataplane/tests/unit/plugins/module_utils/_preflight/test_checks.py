# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Edges of single checks: what is missing, read-only, already right or written in another form."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight import requirements, settings
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.base_chains import (
    BaseChain,
    from_facts,
    from_iptables_save,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.examine import foreign_drops
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import (
    NodeFacts,
    Options,
    parse_version,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.port_ranges import (
    format_set,
    parse_range,
    parse_set,
)


def node(**facts: Any) -> NodeFacts:
    """Return the facts of a healthy node, changed as said."""
    return NodeFacts.from_mapping({"kernel": "6.1.0", "nft": "1.0.6", **facts})


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("6.1.0-12-amd64", (6, 1, 0)),
        ("5.14.0-427.13.1.el9_4.x86_64", (5, 14, 0)),
        ("nftables v1.0.6 (Lester Gooch #5)", (1, 0, 6)),
        ("6.18", (6, 18)),
    ],
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("facts", "options", "result"),
    [
        ({"nft": None}, {}, "fix"),
        ({"nft": "absent"}, {"install_packages": False}, "block"),
        ({"nft": None}, {"backend": "ebpf"}, "skip"),
        ({"nft": "1.0.1"}, {}, "ok"),
        ({"nft": "1.0.0"}, {}, "block"),
    ],
)
def test_nft(facts: dict[str, Any], options: dict[str, Any], result: str) -> None:
    assert requirements.nft(node(**facts), Options.from_mapping(options)).result == result


@pytest.mark.parametrize(
    ("features", "backend", "result"),
    [
        ({"conntrack_delete": False}, "nftables", "warn"),
        ({"conntrack_delete": True}, "nftables", "ok"),
        ({}, "nftables", "ok"),
        ({"conntrack_delete": False}, "ebpf", "skip"),
    ],
)
def test_conntrack_delete(features: dict[str, bool], backend: str, result: str) -> None:
    found = requirements.conntrack_delete(node(features=features), Options.from_mapping({"backend": backend}))
    assert (found.result, "nf_conntrack_netlink" in found.message) == (result, result == "warn")


@pytest.mark.parametrize(
    ("kernel", "features", "result"),
    [
        ("6.18.0", {}, "ok"),
        ("6.18.0", {"cgroup2": False}, "block"),
        ("4.18.0-553.el8", {name: True for name, _since, _meaning in requirements.EBPF_FEATURES}, "ok"),
        ("5.9.0", {}, "block"),
    ],
)
def test_probed_features_win_over_the_release(kernel: str, features: dict[str, bool], result: str) -> None:
    assert requirements.kernel(node(kernel=kernel, features=features), Options(backend="ebpf")).result == result


@pytest.mark.parametrize(
    ("features", "backend", "result", "words"),
    [
        ({}, "nftables", "ok", "every piece"),
        ({"nft_dnat_map": True, "nft_fib": True}, "nftables", "ok", "every piece"),
        ({"nft_dnat_map": False, "nft_ip6": True}, "nftables", "block", "nft_dnat_map"),
        ({"nft_ip6": False}, "nftables", "block", "nft_ip6"),
        ({"nft_destroy_element": False}, "nftables", "ok", "every piece"),
        ({"nft_dnat_map": False}, "ebpf", "skip", ""),
    ],
)
def test_pieces_of_the_tables(features: dict[str, bool], backend: str, result: str, words: str) -> None:
    finding = requirements.nft_features(node(features=features), Options(backend=backend))
    assert (finding.result, finding.overridable) == (result, False)
    assert words in finding.message


def test_no_capability_cannot_be_overridden() -> None:
    finding = requirements.capability(node(cap_net_admin=False), Options())
    assert (finding.result, finding.overridable) == ("block", False)


@pytest.mark.parametrize(
    ("sysctls", "read_only", "families", "results"),
    [
        ({"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1"}, [], (4, 6), ["ok", "ok"]),
        ({"net.ipv4.ip_forward": "0", "net.ipv6.conf.all.forwarding": "1"}, [], (4, 6), ["fix", "ok"]),
        ({"net.ipv4.ip_forward": "0"}, ["net.ipv4.ip_forward"], (4,), ["warn"]),
        ({"net.ipv4.ip_forward": "1"}, [], (4, 6), ["ok", "skip"]),
    ],
)
def test_forwarding(
    sysctls: dict[str, str], read_only: list[str], families: tuple[int, ...], results: list[str]
) -> None:
    findings = settings.forwarding(node(sysctls=sysctls, sysctls_read_only=read_only), Options(families=families))
    assert [finding.result for finding in findings] == results


@pytest.mark.parametrize(
    ("cores", "current", "result", "value"),
    [
        (2, None, "fix", "131072"),
        (8, "65536", "fix", "262144"),
        (8, "262144", "ok", None),
        (8, "999999", "ok", None),
        (96, "65536", "fix", "1048576"),
    ],
)
def test_conntrack_max(cores: int, current: str | None, result: str, value: str | None) -> None:
    sysctls = {} if current is None else {settings.CONNTRACK_MAX: current}
    finding = settings.conntrack_max(node(cores=cores, sysctls=sysctls), Options())
    assert (finding.result, [sysctl.value for sysctl in finding.sysctls]) == (result, [value] if value else [])


@pytest.mark.parametrize(
    ("local", "reserved", "node_ports", "result", "value"),
    [
        ("32768 60999", "", "30000-32767", "ok", None),
        ("1024 65535", "", "30000-32767", "fix", "30000-32767"),
        ("1024\t65535", "8080,9000-9010", "30000-32767", "fix", "8080,9000-9010,30000-32767"),
        ("1024 65535", "30000-32767", "30000-32767", "ok", None),
        ("1024 65535", "29000-33000", "30000+2767", "ok", None),
        ("1024 65535", "30000-31000,32768-33000", "30000-32767", "fix", "30000-33000"),
    ],
)
def test_reserved_ports(local: str, reserved: str, node_ports: str, result: str, value: str | None) -> None:
    facts = node(sysctls={settings.LOCAL_PORT_RANGE: local, settings.LOCAL_RESERVED_PORTS: reserved})
    finding = settings.reserved_ports(facts, Options.from_mapping({"node_ports": node_ports}))
    assert (finding.result, [sysctl.value for sysctl in finding.sysctls]) == (result, [value] if value else [])


@pytest.mark.parametrize(
    ("local", "reserved", "node_ports", "result", "value"),
    [
        ("32768 60999", "", "30000-32767", "ok", None),
        ("1024 65535", "", "30000-32767", "fix", "16384-32767"),
        ("1024 65535", "8080,30000-32767", "30000-32767", "fix", "8080,16384-32767"),
        ("1024 65535", "16384-29999", "40000-42767", "fix", "16384-29999,40000-42767"),
        ("10000 20000", "", "30000-32767", "fix", "16384-29999"),
        ("1024 65535", "16384-32767", "30000-32767", "ok", None),
    ],
)
def test_ports_of_masqueraded_connections_are_reserved_with_ebpf(
    local: str, reserved: str, node_ports: str, result: str, value: str | None
) -> None:
    """Otherwise a socket of the node may take one towards the same endpoint, and lose its answers to a client."""
    facts = node(sysctls={settings.LOCAL_PORT_RANGE: local, settings.LOCAL_RESERVED_PORTS: reserved})
    finding = settings.reserved_ports(facts, Options.from_mapping({"node_ports": node_ports, "backend": "ebpf"}))
    assert (finding.result, [sysctl.value for sysctl in finding.sysctls]) == (result, [value] if value else [])


@pytest.mark.parametrize("text", ["", "0-5", "5-1", "65536", "a-b", "1-2-3", "30000-70000", "60000+9999"])
def test_what_is_no_port_range(text: str) -> None:
    with pytest.raises(ValueError, match="is not a port range"):
        parse_range(text)


def test_port_sets_are_printed_as_the_kernel_does() -> None:
    assert format_set(parse_set("9000-9010,8080,9005-9020,8081")) == "8080-8081,9000-9020"


@pytest.mark.parametrize(
    ("facts", "result"),
    [
        ({}, "skip"),
        ({"pods_on_bridge": "cni0", "br_netfilter": False}, "fix"),
        ({"pods_on_bridge": "cni0", "br_netfilter": False, "sysctl_writable": False}, "warn"),
        (
            {
                "pods_on_bridge": "cni0",
                "br_netfilter": True,
                "sysctls": {settings.BRIDGE_CALL[4]: "1", settings.BRIDGE_CALL[6]: "1"},
            },
            "ok",
        ),
        ({"pods_on_bridge": "cni0", "br_netfilter": True, "sysctls": {settings.BRIDGE_CALL[4]: "0"}}, "fix"),
    ],
)
def test_bridge(facts: dict[str, Any], result: str) -> None:
    assert settings.bridge_netfilter(node(**facts), Options()).result == result


def test_a_chain_that_ends_in_a_plain_reject_drops_by_default() -> None:
    rules = "-A FORWARD -i lo -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n"
    dump = f"*filter\n:FORWARD ACCEPT [0:0]\n{rules}"
    chains = from_iptables_save(dump)
    assert [(chain.chain, chain.policy, chain.ends_in, chain.drops) for chain in chains] == [
        ("FORWARD", "accept", "reject", True)
    ]


def test_a_conditional_drop_is_no_default() -> None:
    dump = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -s 203.0.113.9/32 -j DROP\n"
    assert [chain.drops for chain in from_iptables_save(dump)] == [False]


def test_only_foreign_chains_on_the_way_are_reported() -> None:
    rows = [
        {"family": "ip", "table": "kproxy", "chain": "filter-forward", "hook": "forward", "policy": "drop"},
        {"family": "inet", "table": "firewalld", "chain": "filter_OUTPUT", "hook": "output", "policy": "drop"},
        {"family": "inet", "table": "firewalld", "chain": "filter_FORWARD", "hook": "forward", "policy": "drop"},
    ]
    findings = foreign_drops(node(base_chains=rows))
    assert [(finding.check, finding.result) for finding in findings] == [("forward_drop", "warn"), ("input_drop", "ok")]
    assert "inet firewalld/filter_FORWARD" in findings[0].message


def test_chains_off_the_way_are_not_kept() -> None:
    assert from_facts([{"hook": "output", "table": "t", "chain": "c", "policy": "drop"}]) == []
    assert from_facts([{"family": "bridge", "hook": "forward", "table": "t", "chain": "c", "policy": "drop"}]) == []
    assert from_facts([{"hook": "input", "table": "t", "name": "c"}]) == [BaseChain("ip", "t", "c", "input", "accept")]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"backend": "ipvs"}, "choose nftables or ebpf"), ({"node_ports": "all"}, "not a port range")],
)
def test_bad_options_are_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Options.from_mapping(options)


def test_facts_without_a_kernel_decide_nothing() -> None:
    with pytest.raises(ValueError, match="node_facts"):
        NodeFacts.from_mapping({})


def test_ipv6_forwarding_costs_no_default_route() -> None:
    facts = node(sysctls={"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "0"}, ra_devices=["eth0.100"])
    _ipv4, ipv6 = settings.forwarding(facts, Options())
    assert [(item.name, item.value) for item in ipv6.sysctls] == [
        ("net.ipv6.conf.eth0/100.accept_ra", "2"),
        ("net.ipv6.conf.all.forwarding", "1"),
    ]
    assert "eth0.100 goes on accepting router advertisements" in ipv6.message
    assert [item.check for item in settings.forwarding(facts, Options(families=(4,)))] == ["ipv4_forwarding"]


@pytest.mark.parametrize(("value", "result"), [("1", "warn"), ("0", "ok"), (None, "ok")])
def test_loopback_that_kube_proxy_left_open_is_told(value: str | None, result: str) -> None:
    facts = node(sysctls={} if value is None else {"net.ipv4.conf.all.route_localnet": value})
    assert settings.route_localnet(facts, Options()).result == result
