# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Who makes which KUBE- object, by its name and the table it is in.

Several programs share the prefix, so a name alone never says "left over". The lists follow kube-proxy's proxiers
(pkg/proxy/iptables, pkg/proxy/ipvs), kubelet (pkg/kubelet/kubelet_network_linux.go), KEP-3178 (which moved chains from
kubelet to kube-proxy) and kube-router's policy controller.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "KUBE-"

KUBE_PROXY = "kube-proxy"
KUBELET = "kubelet"
POLICY_AGENT = "network-policy-agent"
EITHER = "either"
OURS = "kproxy"
FOREIGN = "foreign"
OWNERS = (KUBE_PROXY, KUBELET, POLICY_AGENT, EITHER, OURS, FOREIGN)
"""`either`: chains that kubelet before 1.27 and kube-proxy both make; see `ledger` for how most are told apart."""

IPVS_INTERFACE = "kube-ipvs0"

# The kernel and ipset allow 31 characters for the name of a set; kube-proxy lets longer ones be cut.
_IPSET_NAME_LENGTH = 31

_KUBE_PROXY_CHAINS = frozenset(
    (
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-NODEPORTS",
        "KUBE-FORWARD",
        "KUBE-PROXY-CANARY",
        "KUBE-PROXY-FIREWALL",
        "KUBE-SOURCE-RANGES-FIREWALL",
        "KUBE-LOAD-BALANCER",
        "KUBE-NODE-PORT",
        "KUBE-IPVS-FILTER",
        "KUBE-IPVS-OUT-FILTER",
    )
)
_KUBE_PROXY_CHAIN_PREFIXES = ("KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-")
_KUBELET_CHAINS = frozenset(("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP"))
_EITHER_CHAINS = frozenset(("KUBE-MARK-MASQ", "KUBE-POSTROUTING"))
_POLICY_AGENT_PREFIXES = ("KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-POD-FW-")
_RUNTIME_PREFIXES = ("KUBE-HP-", "KUBE-HOSTPORTS")

_KUBE_PROXY_IPSETS = (
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
)
_KUBE_PROXY_IPSET_NAMES = frozenset(
    name[:_IPSET_NAME_LENGTH] for plain in _KUBE_PROXY_IPSETS for name in (plain, "KUBE-6-" + plain[len(PREFIX) :])
)
_POLICY_AGENT_IPSET_PREFIXES = ("KUBE-SRC-", "KUBE-DST-", "inet6:KUBE-SRC-", "inet6:KUBE-DST-", "kube-router-")


class Attribution(NamedTuple):
    """An owner and the reason, in words fit for a report."""

    owner: str
    reason: str


def chain_by_name(table: str, chain: str) -> Attribution | None:
    """Attribute an iptables chain by name and table; None when the name lacks the KUBE- prefix."""
    if not chain.startswith(PREFIX):
        return None
    if chain in _KUBE_PROXY_CHAINS or chain.startswith(_KUBE_PROXY_CHAIN_PREFIXES):
        return Attribution(KUBE_PROXY, "only kube-proxy makes a chain of this name")
    if chain in _KUBELET_CHAINS:
        return Attribution(KUBELET, "only kubelet makes a chain of this name")
    if chain == "KUBE-FIREWALL":
        if table == "nat":
            return Attribution(KUBE_PROXY, "kube-proxy's ipvs mode makes it in nat")
        return Attribution(KUBELET, "kubelet drops packets that abuse route_localnet here")
    if chain in _EITHER_CHAINS:
        return Attribution(EITHER, "kube-proxy and kubelet before 1.27 both make it")
    if chain.startswith(_POLICY_AGENT_PREFIXES):
        return Attribution(POLICY_AGENT, "a network policy agent (kube-router) makes it")
    if chain.startswith(_RUNTIME_PREFIXES):
        return Attribution(FOREIGN, "host ports of the container runtime")
    return Attribution(FOREIGN, "a name that neither kube-proxy nor kubelet uses")


def ipset_by_name(name: str) -> Attribution:
    """Attribute an ipset by name."""
    if name in _KUBE_PROXY_IPSET_NAMES:
        return Attribution(KUBE_PROXY, "kube-proxy's ipvs mode makes a set of this name")
    if name.startswith(_POLICY_AGENT_IPSET_PREFIXES):
        return Attribution(POLICY_AGENT, "a network policy agent (kube-router) makes it")
    return Attribution(FOREIGN, "not a name that kube-proxy uses")


def nft_table_by_name(family: str, name: str) -> Attribution:
    """Attribute an nftables table by family and name."""
    if name == "kube-proxy" and family in ("ip", "ip6"):
        return Attribution(KUBE_PROXY, "kube-proxy's nftables mode keeps everything in this table")
    if name == "kproxy" or name.startswith("kproxy-"):
        return Attribution(OURS, "this collection's own table")
    return Attribution(FOREIGN, "not a table of kube-proxy")
