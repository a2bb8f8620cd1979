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
    An address and port may be listed twice, while a pod's address passes to another pod that is already there: an
    entry that does not terminate counts before one that does, whatever either is ready for.
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
            listed = {(endpoint[0], port): endpoint for endpoint in endpoints}
            if len(listed) < len(endpoints):
                listed = _listed_twice(endpoints, port)
            if not found:
                found = listed
                continue
            for key, endpoint in listed.items():
                known = found.get(key)
                if known is None or _standing(endpoint) > _standing(known):
                    found[key] = endpoint
    return found


def _listed_twice(endpoints: Iterable[SliceEndpoint], port: int) -> Candidates:
    """Return what one slice offers that lists addresses twice: the last that does not terminate, else the first."""
    listed: Candidates = {}
    for endpoint in endpoints:
        key = (endpoint.ip, port)
        if key not in listed or not endpoint.terminating:
            listed[key] = endpoint
    return listed


def _standing(endpoint: SliceEndpoint) -> tuple[bool, bool, bool, str]:
    """Rank entries of several slices for one address and port, whatever the order of slices.

    Among those that terminate, or do not, kube-proxy leaves open which one counts; here it is the more usable one, and
    the node name makes ties the same on every node.
    """
    return not endpoint.terminating, endpoint.ready, endpoint.serving, endpoint.node_name
