# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the loop needs from the engine, and the facts that others need after a commit.

The loop sees the engine only through this protocol, so that it can be driven by tables in tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import FlowCleanup
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.health_checks import HealthCheck
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import Relay, RelayKey


class CommitFailed(Exception):
    """The kernel did not take a commit; the last good state is in force and the changes are kept.

    in_force: the commit itself was taken; removing what it left over failed.
    """

    def __init__(self, message: str, in_force: bool = False) -> None:
        self.in_force = in_force
        super().__init__(message)


class Outcome(NamedTuple):
    """What one sync or audit did.

    generation: number of the last commit that wrote. elements: written or removed. added, changed, removed: frontends
    that the queued changes touched. wrote without any of these: the kernel was other than it had been left.
    flow_cleanups: per family, 4 or 6, whose stale UDP flows were looked for. unfinished: why stale UDP flows are left
    although the commit is in force; empty if none is.
    """

    generation: int
    wrote: bool
    elements: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    flow_cleanups: Mapping[int, FlowCleanup] = {}
    unfinished: str = ""

    @property
    def frontends(self) -> int:
        """Return how many frontends the queued changes touched."""
        return self.added + self.changed + self.removed


class Facts(NamedTuple):
    """What probes, relays and metrics show of the state that is in force.

    node_port_addresses: per family, where NodePorts and health checks are served; ("",) is every address.
    no_local_endpoints: (traffic policy, family) -> service ports with endpoints elsewhere only.
    node_eligible: the Node object permits load balancing to this node; None until it was seen.
    left_out: Services that the kernel refuses, with the reason.
    notes: Services of whose objects some part is not served, one sentence for each part.
    conflicts: frontends that a Service has to leave to another.
    """

    health_checks: tuple[HealthCheck, ...]
    node_port_addresses: Mapping[int, tuple[str, ...]]
    relays: Mapping[RelayKey, Relay]
    no_local_endpoints: Mapping[tuple[str, int], int]
    frontends: Mapping[int, int]
    node_eligible: bool | None
    left_out: Mapping[str, str] = {}
    notes: Mapping[str, tuple[str, ...]] = {}
    conflicts: tuple[str, ...] = ()


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
