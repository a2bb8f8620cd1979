# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Names and neighbourhoods that decide an owner."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import ledger, ownership, removal
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.dumps import (
    Interface,
    IpSet,
    NftTable,
    parse_brief_addresses,
    parse_ipvs_save,
    parse_nft_tables,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import parse

CHAINS = [
    ("nat", "KUBE-SVC-7QJ2PLWMZ4AVK3XC", "kube-proxy"),
    ("nat", "KUBE-XLB-7QJ2PLWMZ4AVK3XC", "kube-proxy"),
    ("nat", "KUBE-FIREWALL", "kube-proxy"),
    ("filter", "KUBE-FIREWALL", "kubelet"),
    ("filter", "KUBE-IPVS-OUT-FILTER", "kube-proxy"),
    ("mangle", "KUBE-IPTABLES-HINT", "kubelet"),
    ("nat", "KUBE-MARK-DROP", "kubelet"),
    ("nat", "KUBE-MARK-MASQ", "either"),
    ("filter", "KUBE-ROUTER-FORWARD", "network-policy-agent"),
    ("filter", "KUBE-NWPLCY-DEFAULT", "network-policy-agent"),
    ("filter", "KUBE-POD-FW-GZ7WSHW5HAZ5MW2A", "network-policy-agent"),
    ("nat", "KUBE-HOSTPORTS", "foreign"),
    ("nat", "KUBE-SOMETHING-ELSE", "foreign"),
]


@pytest.mark.parametrize(("table", "chain", "owner"), CHAINS)
def test_chain_by_name(table: str, chain: str, owner: str) -> None:
    found = ownership.chain_by_name(table, chain)
    assert found is not None
    assert found.owner == owner


def test_chain_without_the_prefix_is_nobodys() -> None:
    assert ownership.chain_by_name("nat", "MY-KUBE-SERVICES") is None


IPSETS = [
    ("KUBE-CLUSTER-IP", "kube-proxy"),
    ("KUBE-6-CLUSTER-IP", "kube-proxy"),
    ("KUBE-6-LOAD-BALANCER-SOURCE-CID", "kube-proxy"),
    ("KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "kube-proxy"),
    ("KUBE-SRC-AAAABBBBCCCCDDDD", "network-policy-agent"),
    ("inet6:KUBE-DST-AAAABBBBCCCC", "network-policy-agent"),
    ("kube-router-pod-subnets", "network-policy-agent"),
    ("KUBE-CLUSTER-IPS", "foreign"),
    ("f2b-sshd", "foreign"),
]


@pytest.mark.parametrize(("name", "owner"), IPSETS)
def test_ipset_by_name(name: str, owner: str) -> None:
    assert ownership.ipset_by_name(name).owner == owner


NFT_TABLES = [
    ("ip", "kube-proxy", "kube-proxy"),
    ("ip6", "kube-proxy", "kube-proxy"),
    ("inet", "kube-proxy", "foreign"),
    ("ip", "kproxy", "kproxy"),
    ("inet", "filter", "foreign"),
]


@pytest.mark.parametrize(("family", "name", "owner"), NFT_TABLES)
def test_nft_table_by_name(family: str, name: str, owner: str) -> None:
    assert ownership.nft_table_by_name(family, name).owner == owner


NAT = "*nat\n:POSTROUTING ACCEPT [0:0]\n%sCOMMIT\n"
MASQ = ":KUBE-MARK-MASQ - [0:0]\n"
# What else stands in nat, and whose KUBE-MARK-MASQ then is.
NEIGHBOURS = [
    ("alone", MASQ, "either"),
    ("kube-proxy", MASQ + ":KUBE-SERVICES - [0:0]\n", "kube-proxy"),
    ("new kubelet and kube-proxy", MASQ + ":KUBE-SERVICES - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n", "kube-proxy"),
    ("old kubelet and kube-proxy", MASQ + ":KUBE-SERVICES - [0:0]\n:KUBE-MARK-DROP - [0:0]\n", "either"),
    (
        "portmap marks with it",
        MASQ + ":KUBE-SERVICES - [0:0]\n:CNI-HOSTPORT-SETMARK - [0:0]\n-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ\n",
        "either",
    ),
]


@pytest.mark.parametrize(("lines", "owner"), [row[1:] for row in NEIGHBOURS], ids=[row[0] for row in NEIGHBOURS])
def test_shared_chain(lines: str, owner: str) -> None:
    capture = ledger.Capture((ledger.Surface("nft", 4, parse(NAT % lines)),))
    book = ledger.attribute(capture)
    assert book.chains["nft", 4, "nat", "KUBE-MARK-MASQ"].owner == owner


def test_one_back_end_says_nothing_about_the_other() -> None:
    full = parse(NAT % (MASQ + ":KUBE-SERVICES - [0:0]\n"))
    book = ledger.attribute(
        ledger.Capture((ledger.Surface("legacy", 4, full), ledger.Surface("nft", 4, parse(NAT % MASQ))))
    )
    assert book.chains["legacy", 4, "nat", "KUBE-MARK-MASQ"].owner == ownership.KUBE_PROXY
    assert book.chains["nft", 4, "nat", "KUBE-MARK-MASQ"].owner == ownership.EITHER


def test_set_that_a_foreign_rule_names_is_kept_and_said() -> None:
    rules = parse(
        "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\nCOMMIT\n"
    )
    capture = ledger.Capture((ledger.Surface("nft", 4, rules),), (IpSet("KUBE-CLUSTER-IP", "inet"),))
    plan = removal.plan_removal(capture, ledger.attribute(capture), {ownership.KUBE_PROXY})
    assert plan.ipsets == ()
    assert plan.kept == ("ipset KUBE-CLUSTER-IP: a rule of nft/ip/filter INPUT names it",)


def test_firewall_mark_service_is_foreign() -> None:
    servers = parse_ipvs_save(
        "-A -f 5 -s rr\n-A -t [2001:db8::5]:80 -s rr\n-a -t [2001:db8::5]:80 -r [fd00::1]:80 -m\n"
    )
    book = ledger.attribute(
        ledger.Capture(virtual_servers=servers, interfaces=(Interface("kube-ipvs0", ("2001:db8::5",)),))
    )
    assert [book.virtual_servers[server].owner for server in servers] == ["foreign", "kube-proxy"]
    assert str(servers[1]) == "[2001:db8::5]:80/tcp"


def test_brief_addresses_with_peers_and_parents() -> None:
    text = "eth0@if7  UP  192.0.2.11/24 fe80::1/64\nppp0 UNKNOWN 10.0.0.1 peer 10.0.0.2/32\nwg0 UNKNOWN\n"
    assert parse_brief_addresses(text) == (
        Interface("eth0", ("192.0.2.11", "fe80::1")),
        Interface("ppp0", ("10.0.0.1", "10.0.0.2")),
        Interface("wg0", ()),
    )


def test_nft_tables() -> None:
    assert parse_nft_tables("table ip kube-proxy\ntable ip6 nat\n") == (
        NftTable("ip", "kube-proxy"),
        NftTable("ip6", "nat"),
    )


@pytest.mark.parametrize("owner", ["foreign", "kproxy", "nobody"])
def test_owners_that_are_never_removed(owner: str) -> None:
    with pytest.raises(ValueError, match="never removed"):
        removal.plan_removal(ledger.Capture(), ledger.attribute(ledger.Capture()), {owner})
