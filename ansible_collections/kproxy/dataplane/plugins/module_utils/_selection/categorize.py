# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which candidates a Cluster and a Local traffic policy may use on this node."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.candidates import Candidates
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.topology import topology_filter


class Endpoint(NamedTuple):
    """A place a connection may go to. local: it runs on this node."""

    ip: bytes
    port: int
    local: bool


class EndpointSets(NamedTuple):
    """The endpoint sets of one service port in one family.

    cluster: what the Cluster policy uses. local: what the Local policy uses; each falls back on its own to draining
    endpoints (KEP-1669). local is a set of this node's endpoints and need not be a subset of cluster: hints and
    readiness elsewhere do not reach it.
    exists: some endpoint is usable somewhere in the cluster, so that an empty local set means "not here" (drop)
    rather than "nowhere" (reject).
    """

    cluster: tuple[Endpoint, ...]
    local: tuple[Endpoint, ...]
    exists: bool


NO_ENDPOINTS = EndpointSets((), (), False)

#: Makes a named tuple from a tuple. The constructor by fields takes three times as long, once for every endpoint.
_make = tuple.__new__


def categorize(found: Candidates, node_name: str, zone: str) -> EndpointSets:
    """Return the endpoint sets of a service port, in address order.

    Source: pkg/proxy/topology.go CategorizeEndpoints.
    """
    if not found:
        return NO_ENDPOINTS
    everyone: list[Endpoint] = []
    for (ip, port), (_ip, node, ready, _serving, _terminating, zone_hints, node_hints) in found.items():
        # What nearly all service ports look like: everybody is ready and nobody has a hint.
        if not ready or zone_hints or node_hints:
            return _categorize_with_conditions(found, node_name, zone)
        everyone.append(_make(Endpoint, (ip, port, node == node_name)))
    everyone.sort()
    return _make(EndpointSets, (tuple(everyone), tuple([endpoint for endpoint in everyone if endpoint[2]]), True))


def _categorize_with_conditions(found: Candidates, node_name: str, zone: str) -> EndpointSets:
    ready = [
        (Endpoint(ip, port, entry.node_name == node_name), entry) for (ip, port), entry in found.items() if entry.ready
    ]
    if not ready:
        # Without ready endpoints anywhere, the Cluster policy already uses every draining one.
        draining = _draining(found, node_name)
        return EndpointSets(draining, tuple(endpoint for endpoint in draining if endpoint.local), bool(draining))
    in_topology = topology_filter([entry for _endpoint, entry in ready], node_name, zone)
    everywhere = sorted([endpoint for endpoint, _entry in ready])
    if in_topology is None:
        cluster = tuple(everywhere)
    else:
        cluster = tuple(sorted([endpoint for endpoint, entry in ready if in_topology(entry)]))
    local = tuple([endpoint for endpoint in everywhere if endpoint.local])
    if not local and len(ready) < len(found):
        local = tuple([endpoint for endpoint in _draining(found, node_name) if endpoint.local])
    return EndpointSets(cluster, local, True)


def _draining(found: Candidates, node_name: str) -> tuple[Endpoint, ...]:
    return tuple(
        sorted(
            Endpoint(ip, port, entry.node_name == node_name)
            for (ip, port), entry in found.items()
            if not entry.ready and entry.serving and entry.terminating
        )
    )
