# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell a canary that chooses nothing: a misspelt name or label, with which a trial would prove nothing."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable


def idle_canary(table: ServiceTable) -> list[str]:
    """Return one sentence if there are Services, and the canary chooses none of them."""
    canary, services = table.config.canary, table.store.services.values()
    if canary is None or not services or any(canary.chooses(service) for service in services):
        return []
    return [f"the canary ({canary}) chooses none of the {len(services)} Services, so nothing is ours here"]
