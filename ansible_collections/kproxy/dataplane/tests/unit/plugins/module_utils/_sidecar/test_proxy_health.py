# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import (
    NodeEligibility,
    ProxyState,
    healthz,
    livez,
)

NOW = 1_800_000_000.0
NORMAL = NodeEligibility(known=True)
DELETING = NodeEligibility(known=True, being_deleted=True)
DOOMED = NodeEligibility(known=True, taint_keys=frozenset({"ToBeDeletedByClusterAutoscaler"}))
TAINTED = NodeEligibility(known=True, taint_keys=frozenset({"example.com/maintenance"}))
UNKNOWN = NodeEligibility()


@pytest.mark.parametrize(
    ("node", "pending_age", "healthz_status", "livez_status", "healthy", "eligible"),
    [
        pytest.param(NORMAL, {}, 200, 200, True, True, id="idle"),
        pytest.param(NORMAL, {"IPv4": 59.9}, 200, 200, True, True, id="just in time"),
        pytest.param(NORMAL, {"IPv4": 60.0}, 503, 503, False, True, id="the limit is late"),
        pytest.param(NORMAL, {"IPv6": 75.0}, 503, 503, False, True, id="one late family is enough"),
        pytest.param(DELETING, {}, 503, 200, True, False, id="node being deleted"),
        pytest.param(DOOMED, {}, 503, 200, True, False, id="autoscaler taint"),
        pytest.param(TAINTED, {}, 200, 200, True, True, id="another taint"),
        pytest.param(UNKNOWN, {}, 503, 200, True, False, id="node never seen"),
        pytest.param(DELETING, {"IPv4": 61.0}, 503, 503, False, False, id="both"),
    ],
)
def test_answers(
    node: NodeEligibility,
    pending_age: dict[str, float],
    healthz_status: int,
    livez_status: int,
    healthy: bool,
    eligible: bool,
) -> None:
    state = ProxyState(NOW, 30.0, node, {family: NOW - age for family, age in pending_age.items()})
    ready, live = healthz(state), livez(state)
    assert (ready.status, live.status) == (healthz_status, livez_status)
    body = json.loads(ready.body)
    assert (body["healthy"], body["nodeEligible"]) == (healthy, eligible)
    assert "nodeEligible" not in json.loads(live.body)
    assert set(body["status"]) == {"IPv4", "IPv6"}
    assert dict(ready.headers)["X-Content-Type-Options"] == "nosniff"


def test_last_updated_is_now_while_well_and_the_oldest_update_otherwise() -> None:
    updates = {"IPv4": NOW - 7200, "IPv6": NOW - 100}
    well = json.loads(healthz(ProxyState(NOW, 30.0, NORMAL, {}, updates)).body)
    late = json.loads(healthz(ProxyState(NOW, 30.0, NORMAL, {"IPv4": NOW - 90}, updates)).body)
    assert well["lastUpdated"] == well["currentTime"] == "2027-01-15T08:00:00.000000Z"
    assert late["lastUpdated"] == late["status"]["IPv4"]["lastUpdated"] == "2027-01-15T06:00:00.000000Z"
