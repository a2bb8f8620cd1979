# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the proxy says about itself on /healthz and /livez.

Pure: a state goes in, an answer comes out. The rules are kube-proxy's (pkg/proxy/healthcheck/proxy_health.go):
an update that stays unapplied for twice the sync period makes the proxy unhealthy; having nothing to do never does.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import NamedTuple

FAMILIES = ("IPv4", "IPv6")
# The cluster autoscaler announces with this taint that the node goes away; load balancers should stop using it first.
TO_BE_DELETED_TAINT = "ToBeDeletedByClusterAutoscaler"
JSON_HEADERS = (("Content-Type", "application/json"), ("X-Content-Type-Options", "nosniff"))


class HttpAnswer(NamedTuple):
    """One HTTP response, complete but for what the server itself adds."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class NodeEligibility(NamedTuple):
    """What the Node object says about taking part in load balancing.

    A node that was deleted keeps its last known state: the balancer learns of the deletion by other means.
    """

    known: bool = False
    being_deleted: bool = False
    taint_keys: frozenset[str] = frozenset()

    @property
    def eligible(self) -> bool:
        """Return whether a load balancer should send new traffic here."""
        return self.known and not self.being_deleted and TO_BE_DELETED_TAINT not in self.taint_keys


class ProxyState(NamedTuple):
    """Everything /healthz and /livez depend on. Times are seconds since the epoch."""

    now: float
    sync_period: float
    node: NodeEligibility
    pending_since: Mapping[str, float] = {}
    last_updated: Mapping[str, float] = {}
    families: tuple[str, ...] = FAMILIES

    def family_healthy(self, family: str) -> bool:
        """Return whether no update of this family has waited for twice the sync period; the limit itself is late."""
        since = self.pending_since.get(family)
        return since is None or self.now - since < 2 * self.sync_period

    @property
    def healthy(self) -> bool:
        """Return whether every family is in time."""
        return all(self.family_healthy(family) for family in self.families)


def livez(state: ProxyState) -> HttpAnswer:
    """Answer /livez: is the proxy itself in order? The node's fate does not matter here."""
    return _answer(state, state.healthy, {})


def healthz(state: ProxyState) -> HttpAnswer:
    """Answer /healthz: should a load balancer use this node? Needs a proxy in order and an eligible node."""
    eligible = state.node.eligible
    return _answer(state, state.healthy and eligible, {"nodeEligible": eligible})


def _answer(state: ProxyState, good: bool, extra: Mapping[str, bool]) -> HttpAnswer:
    updates = [state.last_updated[family] for family in state.families if family in state.last_updated]
    # Good means "valid as of now", however long ago the last update was; otherwise the oldest update is the news.
    last_updated = state.now if good else min(updates, default=None)
    document = {
        "lastUpdated": _timestamp(last_updated),
        "currentTime": _timestamp(state.now),
        "healthy": state.healthy,
        **extra,
        "status": {
            family: {
                "lastUpdated": _timestamp(state.last_updated.get(family)),
                "healthy": state.family_healthy(family),
            }
            for family in state.families
        },
    }
    return HttpAnswer(200 if good else 503, JSON_HEADERS, json.dumps(document).encode())


def _timestamp(seconds: float | None) -> str | None:
    """Return RFC 3339 in UTC, or None for "never"."""
    if seconds is None:
        return None
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
