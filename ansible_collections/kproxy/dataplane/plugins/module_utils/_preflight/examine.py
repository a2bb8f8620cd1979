# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""All checks of a node in the order an operator wants to read them."""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight import requirements, settings
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.base_chains import HOOKS
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.findings import BLOCK, OK, WARN, Finding
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts, Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.own_translation import socket_translation
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.variables import variables

# The dataplane's own tables; their chains never count as somebody else's.
OWN_TABLES = frozenset({"kproxy", "kproxy-canary"})

_MEANING = {
    "forward": "Service traffic to pods on other machines or in other namespaces is lost there",
    "input": "endpoints on the host network and the health check port of this node cannot be reached from outside",
}


def examine(facts: NodeFacts, options: Options) -> list[Finding]:
    """Return one finding per check; the node may be used if none of them blocks."""
    return [
        variables(facts, options),
        requirements.capability(facts, options),
        requirements.kernel(facts, options),
        requirements.nft(facts, options),
        requirements.nft_features(facts, options),
        requirements.conntrack_delete(facts, options),
        *settings.forwarding(facts, options),
        settings.conntrack_max(facts, options),
        settings.tcp_be_liberal(facts, options),
        settings.bridge_netfilter(facts, options),
        settings.reserved_ports(facts, options),
        settings.route_localnet(facts, options),
        socket_translation(facts, options),
        *foreign_drops(facts),
    ]


def foreign_drops(facts: NodeFacts) -> list[Finding]:
    """Warn about every base chain of somebody else that would drop what the dataplane lets through.

    Such a chain is named and left as it is: only its owner knows what else it guards.
    """
    findings: list[Finding] = []
    for hook in HOOKS:
        foreign = [chain for chain in facts.base_chains if chain.hook == hook and chain.table not in OWN_TABLES]
        dropping = [chain for chain in foreign if chain.drops]
        findings.extend(
            Finding(
                f"{hook}_drop",
                WARN,
                f"chain {chain} on the {hook} hook "
                + (f"has policy {chain.policy}" if chain.policy == "drop" else f"ends in {chain.ends_in}")
                + f": {_MEANING[hook]} unless its owner accepts it; it is not edited by this collection",
            )
            for chain in dropping
        )
        if not dropping:
            findings.append(Finding(f"{hook}_drop", OK, f"no other chain on the {hook} hook drops by default"))
    return findings


def blocking(findings: Iterable[Finding], override: Iterable[str] = ()) -> list[Finding]:
    """Return the findings that refuse the node; ``override`` names checks whose risk the operator took."""
    accepted = frozenset(override)
    return [
        finding
        for finding in findings
        if finding.result == BLOCK and not (finding.overridable and finding.check in accepted)
    ]
