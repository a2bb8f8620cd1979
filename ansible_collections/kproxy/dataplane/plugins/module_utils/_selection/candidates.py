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
    An address and port may be listed twice, while it passes from a pod that goes to one that is already there: an
    entry that does not terminate counts before one that does, be it ready or not; the order of slices and entries
    does not matter. Source: pkg/proxy/endpointslicecache.go.
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
                if known is None or _standing(endpoint) > _standing(known):
                    found[key] = endpoint
    return found


def _standing(endpoint: SliceEndpoint) -> tuple[bool, bool, bool, str]:
    """Rank entries for one address and port.

    Among those that terminate, and those that do not, the more usable one counts, where kube-proxy leaves it open; the
    node name makes ties the same on every node.
    """
    return not endpoint.terminating, endpoint.ready, endpoint.serving, endpoint.node_name
