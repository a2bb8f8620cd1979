# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The endpoints that a Service's slices offer to one of its ports, before any policy."""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import (
    EndpointSlice,
    SliceEndpoint,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import ServicePort

Candidates = dict[tuple[bytes, int], SliceEndpoint]


def candidates(service_port: ServicePort, slices: Iterable[EndpointSlice], family: int) -> Candidates:
    """Return what the slices of one family offer to a service port, by address and port.

    A slice port counts if its name and protocol are those of the service port; targetPort is never read.
    The same address and port may be listed twice: the more usable entry wins, whatever the order of slices.
    Source: pkg/proxy/endpointslicecache.go.
    """
    found: Candidates = {}
    name, protocol, _port, _node_port = service_port
    for _namespace, _name, _service, slice_family, ports, endpoints, _trigger_time, _notes in slices:
        if slice_family != family:
            continue
        for slice_name, slice_protocol, port in ports:
            if slice_name != name or slice_protocol != protocol:
                continue
            if not found:
                found = {(endpoint[0], port): endpoint for endpoint in endpoints}
                if len(found) == len(endpoints):
                    continue
                found = {}
            for endpoint in endpoints:
                key = (endpoint.ip, port)
                known = found.get(key)
                if known is None or _usability(endpoint) > _usability(known):
                    found[key] = endpoint
    return found


def _usability(endpoint: SliceEndpoint) -> tuple[int, bool, str]:
    """Rank entries for one address and port; the node name makes ties the same on every node."""
    draining = endpoint.serving and endpoint.terminating
    rank = 2 if endpoint.ready else 1 if draining else 0
    return rank, not endpoint.terminating, endpoint.node_name
