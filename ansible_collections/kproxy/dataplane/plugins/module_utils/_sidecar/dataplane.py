# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the loop needs from the engine, and the facts that others need after a commit.

The loop sees the engine only through this protocol, so that it can be driven by tables in tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.health_checks import HealthCheck
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import Relay, RelayKey


class CommitFailed(Exception):
    """The kernel did not take a commit; the last good state is in force and the changes are kept."""


class Outcome(NamedTuple):
    """What one sync or audit did.

    generation: number of the last commit, unchanged if nothing was written. added, removed: elements.
    structure: tables, chains or rules were written too. altered: an audit found the kernel other than we had left it.
    conntrack_seconds, conntrack_deleted: per family, of the cleaning that followed; empty if there was none.
    """

    generation: int
    added: int = 0
    removed: int = 0
    structure: bool = False
    altered: tuple[str, ...] = ()
    conntrack_seconds: Mapping[int, float] = {}
    conntrack_deleted: Mapping[int, int] = {}

    @property
    def wrote(self) -> bool:
        """Return whether anything was written to the kernel."""
        return bool(self.added or self.removed or self.structure)


class Facts(NamedTuple):
    """What probes, relays and metrics show of the state that is in force.

    node_port_addresses: per family, where NodePorts and health checks are served; ("",) is every address.
    no_local_endpoints: (traffic policy, family) -> service ports with endpoints elsewhere only.
    node_eligible: the Node object permits load balancing to this node; None until it was seen.
    """

    health_checks: tuple[HealthCheck, ...]
    node_port_addresses: Mapping[int, tuple[str, ...]]
    relays: Mapping[RelayKey, Relay]
    no_local_endpoints: Mapping[tuple[str, int], int]
    frontends: Mapping[int, int]
    node_eligible: bool | None
    problems: tuple[str, ...] = ()


class Dataplane(Protocol):
    """The engine, as the loop uses it. Only one thread may call it."""

    def apply(self, changes: Sequence[Change]) -> None:
        """Queue changes; never touches the kernel."""

    def sync(self) -> Outcome:
        """Commit what is queued; work proportional to the change. Raises CommitFailed."""

    def audit(self) -> Outcome:
        """Read the kernel back, commit what is queued and repair what differs. Raises CommitFailed."""

    def facts(self) -> Facts:
        """Return the facts of the state in force."""
