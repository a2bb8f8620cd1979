"""Ask the product's pure decision about its own health, in a state that a case gives.

The exact limit, and ages of hours, cannot be hit by waiting. So /healthz and /livez are judged on the function that
the daemon's handler calls, with the clock and the ages handed in; the Node object goes through the product's parser.
What the daemon makes of real delays is proved with real time in health checks (see ``proxy_state``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.node import Node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import (
    HttpAnswer,
    NodeEligibility,
    ProxyState,
    healthz,
    livez,
)
from devtools.conformance.corpus import NodeFacts
from devtools.conformance.facts import HttpResponse
from devtools.conformance.manifests import node_manifest

NOW = 1_800_000_000.0


def proxy_state(given: Mapping[str, Any], eligibility: NodeEligibility) -> ProxyState:
    """The product's state from the corpus's: ages become points in time."""
    pending, updated = given["pending_update_age_seconds"], given.get("last_update_age_seconds") or {}
    return ProxyState(
        NOW,
        given["sync_period_seconds"],
        eligibility,
        {family: NOW - age for family, age in pending.items()},
        {family: NOW - age for family, age in updated.items()},
    )


def node_eligibility(state: str, facts: NodeFacts) -> NodeEligibility:
    """What the daemon concludes from the Node object of a state."""
    if state == "missing":
        return NodeEligibility()
    manifest = node_manifest(facts)
    if state == "deletion-timestamp":
        manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    elif state.startswith("taint:"):
        manifest["spec"]["taints"] = [{"key": state.removeprefix("taint:"), "effect": "NoSchedule"}]
    node = parse(manifest)
    assert isinstance(node, Node), "a Node manifest is a Node"
    return NodeEligibility(known=True, being_deleted=not node.eligible)


def proxy_health(check: Mapping[str, Any], facts: NodeFacts) -> HttpResponse:
    state = proxy_state(check["state"], node_eligibility(check["state"]["node"], facts))
    return response(healthz(state) if check["path"] == "/healthz" else livez(state))


def response(answer: HttpAnswer) -> HttpResponse:
    return HttpResponse(answer.status, {name.lower(): value for name, value in answer.headers}, answer.body)
