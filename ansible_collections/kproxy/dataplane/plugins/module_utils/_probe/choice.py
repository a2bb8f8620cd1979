# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which addresses to dial: every kind of frontend in scope, a bounded number of each, the same ones on every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

PROTOCOLS = ("TCP", "UDP", "SCTP")


class Goal(NamedTuple):
    """One address to dial. kind, service and affinity are those of the service table's row."""

    kind: str
    service: str
    family: str
    protocol: str
    address: str
    port: int
    affinity: bool = False

    def __str__(self) -> str:
        """Return the goal as people write it."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}/{self.protocol}"


def choose(
    rows: Iterable[Mapping[str, Any]],
    node_addresses: Sequence[str],
    per_kind: int,
    protocols: Sequence[str] = PROTOCOLS,
) -> list[Goal]:
    """Return up to ``per_kind`` goals of each kind, family, protocol, verdict and affinity, evenly over the table.

    Args:
        rows: the service table as ``service_info`` returns it.
        node_addresses: where NodePorts are dialled, each on the first address of its family.
        per_kind: 0 for all.
    """
    groups: dict[tuple[str, str, str, str, bool], list[Goal]] = {}
    for row in rows:
        if row["protocol"] not in protocols:
            continue
        address = row["address"] or _address_of_family(node_addresses, row["family"])
        if address:
            affinity = bool(row.get("affinitySeconds"))
            goal = Goal(
                row["kind"], row["service"], row["family"], row["protocol"], address, row["portNumber"], affinity
            )
            group = (row["kind"], row["family"], row["protocol"], row["outsiders"]["verdict"], affinity)
            groups.setdefault(group, []).append(goal)
    return [goal for group in sorted(groups) for goal in _spread(sorted(groups[group]), per_kind)]


def _spread(goals: list[Goal], limit: int) -> list[Goal]:
    if not limit or len(goals) <= limit:
        return goals
    return [goals[index * len(goals) // limit] for index in range(limit)]


def _address_of_family(addresses: Iterable[str], family: str) -> str:
    return next((address for address in addresses if (":" in address) == (family == "IPv6")), "")
