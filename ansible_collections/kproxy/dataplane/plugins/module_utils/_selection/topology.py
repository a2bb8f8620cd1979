# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Topology hints: which ready endpoints this node should prefer (KEP-2433, KEP-3015)."""

from __future__ import annotations

from collections.abc import Callable

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import SliceEndpoint

Filter = Callable[[SliceEndpoint], bool]


def topology_filter(ready: list[SliceEndpoint], node_name: str, zone: str) -> Filter | None:
    """Return the filter that the hints ask for on this node, or None where every ready endpoint may be used.

    Node hints come first, then zone hints; either counts only if every ready endpoint carries such a hint and one
    of them names this node or zone. Only ready endpoints are asked. Source: pkg/proxy/topology.go
    topologyModeFromHints.
    """
    first = ready[0]
    if not first.node_hints and not first.zone_hints:
        return None
    if all(entry.node_hints for entry in ready) and any(node_name in entry.node_hints for entry in ready):
        return lambda entry: node_name in entry.node_hints
    if zone and all(entry.zone_hints for entry in ready) and any(zone in entry.zone_hints for entry in ready):
        return lambda entry: zone in entry.zone_hints
    return None
