# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Base chains of other programs that would drop what the dataplane has translated.

An ``accept`` in one nftables table does not end the other base chains of the same hook: each of them must let the
packet pass. So a forward chain with policy drop that belongs to Docker, ufw or firewalld stops Service traffic, and
kube-proxy's own accept rules in such a chain may have been what kept it alive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

# What Service traffic passes after the translation: forward on its way to pods, input towards endpoints on the host
# network and the health check port.
HOOKS = ("forward", "input")

# Families whose hooks routed packets pass; those of bridge and arp have the same names and other packets.
FAMILIES = ("ip", "ip6", "inet")

_CHAIN = re.compile(r"^:(?P<chain>\S+) (?P<policy>\S+)")
_VERDICT_WITHOUT_MATCH = re.compile(
    r"^-A (?P<chain>\S+)(?: -m comment --comment (?:\"[^\"]*\"|\S+))? -j (?P<verdict>DROP|REJECT)\b"
)


@dataclass(frozen=True)
class BaseChain:
    """A chain that hangs on a netfilter hook, and what happens to a packet that none of its rules decides."""

    family: str
    table: str
    chain: str
    hook: str
    policy: str
    ends_in: str = ""
    backend: str = ""

    @property
    def drops(self) -> bool:
        """Whether a packet that no rule of the chain accepts is lost."""
        return self.policy == "drop" or self.ends_in in ("drop", "reject")

    def __str__(self) -> str:
        """Name the chain the way its owner's tool does."""
        return f"{self.family} {self.table}/{self.chain}" + (f" of {self.backend}" if self.backend else "")


def from_iptables_save(text: str, family: str = "ip", backend: str = "") -> list[BaseChain]:
    """Return the forward and input chains that an ``iptables-save`` dump declares.

    User-defined chains carry ``-`` for a policy and are left out: packets come back from them.
    """
    table = ""
    chains: dict[tuple[str, str], BaseChain] = {}
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
            continue
        declared = _CHAIN.match(line)
        if declared and declared["policy"] != "-" and declared["chain"].lower() in HOOKS:
            name = declared["chain"]
            policy = declared["policy"].lower()
            chains[table, name] = BaseChain(family, table, name, name.lower(), policy, backend=backend)
            continue
        final = _VERDICT_WITHOUT_MATCH.match(line)
        if final and (table, final["chain"]) in chains:
            known = chains[table, final["chain"]]
            chains[table, known.chain] = replace(known, ends_in=final["verdict"].lower())
    return list(chains.values())


def from_facts(rows: Iterable[Mapping[str, Any]]) -> list[BaseChain]:
    """Return the base chains of ``node_facts`` that sit on a hook Service traffic passes."""
    return [
        BaseChain(
            family=str(row.get("family", "ip")),
            table=str(row.get("table", "")),
            chain=str(row.get("chain", row.get("name", ""))),
            hook=str(row.get("hook", "")).lower(),
            policy=str(row.get("policy", "accept")).lower(),
            ends_in=str(row.get("ends_in", "")).lower(),
            backend=str(row.get("backend", "")),
        )
        for row in rows
        if str(row.get("hook", "")).lower() in HOOKS and str(row.get("family", "ip")) in FAMILIES
    ]
