# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks that refuse a node: what the dataplane cannot run without."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.findings import (
    BLOCK,
    FIX,
    OK,
    SKIP,
    WARN,
    Finding,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import (
    NodeFacts,
    Options,
    Version,
    parse_version,
)

# Before 5.13 the kernel and other users of nft disagree about sets that carry expressions: their nft crashes
# (kubernetes/kubernetes#122743). nft before 1.0.1 does not know the syntax the tables are written in.
KERNEL_FOR_NFTABLES: Version = (5, 13)
NFT: Version = (1, 0, 1)

# What the tables are made of. Features beyond these have a slower way round.
NFT_FEATURES = (
    "nft_ip",
    "nft_ip6",
    "nft_verdict_map",
    "nft_dnat_map",
    "nft_concatenated_interval",
    "nft_learned_map",
    "nft_fib",
    "nft_masquerade_random",
    "nft_reject",
    "nft_elements",
)

# What the eBPF backend cannot do without, in the order in which it is needed, with the kernel that brought it. A probed
# answer wins over the release number, because vendors backport.
EBPF_FEATURES: tuple[tuple[str, Version, str], ...] = (
    ("cgroup2", (4, 17), "a cgroup v2 hierarchy with connect hooks"),
    ("btf", (5, 2), "BTF, which types the maps"),
    ("cgroup_recvmsg", (5, 2), "the recvmsg hooks for UDP sockets"),
    ("bpf_link", (5, 7), "links, by which programs are swapped without a gap"),
    ("cgroup_getpeername", (5, 8), "the getpeername hooks"),
    ("redirect_neigh", (5, 10), "redirect to a neighbour, for packets that leave the node"),
)


def kernel(facts: NodeFacts, options: Options) -> Finding:
    """The kernel must carry what the backend in use needs."""
    release = parse_version(facts.kernel)
    if options.backend == "ebpf":
        for feature, since, meaning in EBPF_FEATURES:
            if not facts.features.get(feature, release >= since):
                return Finding(
                    "kernel",
                    BLOCK,
                    f"kernel {facts.kernel} lacks {feature}: {meaning} (Linux {_dotted(since)}); "
                    "update the kernel or set kproxy_backend to nftables",
                )
        return Finding("kernel", OK, f"kernel {facts.kernel} has every hook the eBPF backend needs")
    if release < KERNEL_FOR_NFTABLES:
        return Finding(
            "kernel",
            BLOCK,
            f"kernel {facts.kernel} is older than {_dotted(KERNEL_FOR_NFTABLES)}: other users of nft on the node would "
            "crash; update the kernel, or set preflight_override to go on at your own risk",
            overridable=True,
        )
    return Finding("kernel", OK, f"kernel {facts.kernel} is recent enough")


def nft(facts: NodeFacts, options: Options) -> Finding:
    """The nft program loads the structure of the tables; the eBPF backend serves TCP and UDP without it."""
    if options.backend == "ebpf":
        return Finding("nft", SKIP, "the eBPF backend needs it for SCTP and for refusals of the node's own pings alone")
    if facts.nft is None:
        if options.install_packages:
            return Finding("nft", FIX, "the nft program is not installed", packages=("nftables",))
        return Finding("nft", BLOCK, "the nft program is not installed; install the package nftables")
    if parse_version(facts.nft) < NFT:
        return Finding(
            "nft",
            BLOCK,
            f"nft {facts.nft} is older than {_dotted(NFT)}; install a newer nftables package, "
            "or set preflight_override to go on at your own risk",
            overridable=True,
        )
    return Finding("nft", OK, f"nft {facts.nft} is recent enough")


def nft_features(facts: NodeFacts, options: Options) -> Finding:
    """Every piece the tables are made of must load here; one that could not be tried is no reason to refuse."""
    if options.backend == "ebpf":
        return Finding("nft_features", SKIP, "not needed by the eBPF backend")
    refused = [name for name in NFT_FEATURES if facts.features.get(name) is False]
    if 6 not in options.families:
        refused = [name for name in refused if name != "nft_ip6"]
    if refused:
        return Finding(
            "nft_features",
            BLOCK,
            f"this kernel or nft program does not load {', '.join(refused)}: "
            "modules or options of nftables are missing from it",
        )
    return Finding("nft_features", OK, "every piece of the tables loads")


def conntrack_delete(facts: NodeFacts, options: Options) -> Finding:
    """UDP has no end of a connection: only deleting its flow leads a client away from an endpoint that has gone."""
    check = "conntrack_delete"
    if options.backend == "ebpf":
        return Finding(check, SKIP, "not needed by the eBPF backend, but for Services that it leaves to nftables")
    if facts.features.get(check) is False:
        return Finding(
            check,
            WARN,
            "tracked flows cannot be read or deleted here, so UDP clients go on sending to endpoints that have gone; "
            "load nf_conntrack_netlink, which some distributions keep in a package of further kernel modules",
        )
    return Finding(check, OK, "tracked flows can be deleted")


def capability(facts: NodeFacts, options: Options) -> Finding:
    """Without CAP_NET_ADMIN the kernel takes neither tables nor programs."""
    if facts.cap_net_admin:
        return Finding("cap_net_admin", OK, "the connection has CAP_NET_ADMIN")
    return Finding(
        "cap_net_admin",
        BLOCK,
        "the connection has no CAP_NET_ADMIN: become root, or give the container the capability",
    )


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
