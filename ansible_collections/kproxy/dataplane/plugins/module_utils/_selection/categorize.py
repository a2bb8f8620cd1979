# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which candidates a Cluster and a Local traffic policy may use on this node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import SliceEndpoint
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


def categorize(found: Candidates, node_name: str, zone: str) -> EndpointSets:
    """Return the endpoint sets of a service port, in address order.

    Source: pkg/proxy/topology.go CategorizeEndpoints.
    """
    if not found:
        return NO_ENDPOINTS
    ready = [(key, entry) for key, entry in found.items() if entry.ready]
    if ready:
        in_topology = topology_filter([entry for _key, entry in ready], node_name, zone)
        cluster = [(key, entry) for key, entry in ready if in_topology is None or in_topology(entry)]
    else:
        cluster = _draining(found.items())
    local = [(key, entry) for key, entry in ready if entry.node_name == node_name]
    if not local:
        local = [(key, entry) for key, entry in _draining(found.items()) if entry.node_name == node_name]
    # Without ready endpoints anywhere, cluster already holds every draining one.
    return EndpointSets(_endpoints(cluster, node_name), _endpoints(local, node_name), bool(cluster))


_Entries = Iterable[tuple[tuple[bytes, int], SliceEndpoint]]


def _draining(entries: _Entries) -> list[tuple[tuple[bytes, int], SliceEndpoint]]:
    return [(key, entry) for key, entry in entries if not entry.ready and entry.serving and entry.terminating]


def _endpoints(entries: _Entries, node_name: str) -> tuple[Endpoint, ...]:
    return tuple(sorted(Endpoint(ip, port, entry.node_name == node_name) for (ip, port), entry in entries))
