# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From a Service's slices to the endpoint sets of one of its ports."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import UDP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import ServicePort
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.candidates import candidates
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import (
    NO_ENDPOINTS,
    Endpoint,
    EndpointSets,
    categorize,
)

Serving = frozenset[tuple[bytes, int]]

_NONE_SERVING: Serving = frozenset()
#: Makes a named tuple from a tuple. The constructor by fields takes three times as long, once for every endpoint.
_make = tuple.__new__


def select(
    service_port: ServicePort, slices: Sequence[EndpointSlice], family: int, node_name: str, zone: str
) -> tuple[EndpointSets, Serving]:
    """Return the endpoint sets of a service port in one family, and which endpoints UDP flows may keep using.

    The latter are the addresses and ports of endpoints that serve, draining ones included; of UDP ports only.
    """
    if service_port[1] == UDP:
        found = candidates(service_port, slices, family)
        serving = frozenset(key for key, entry in found.items() if entry.serving)
        return categorize(found, node_name, zone), serving
    sets = _plain(service_port, slices, family, node_name)
    if sets is None:
        sets = categorize(candidates(service_port, slices, family), node_name, zone)
    return sets, _NONE_SERVING


def _plain(
    service_port: ServicePort, slices: Sequence[EndpointSlice], family: int, node_name: str
) -> EndpointSets | None:
    """Return the endpoint sets of what nearly all service ports look like, or None for one that needs more thought.

    That is: one slice offers the port, no address comes twice, everybody is ready and nobody has a hint. There is then
    nothing to choose, so the result is that of candidates() and categorize(), in half of their time.
    """
    name, protocol, _port, _node_port = service_port
    everyone: list[Endpoint] = []
    any_local = False
    for _namespace, _name, _service, slice_family, ports, endpoints, _trigger_time, _notes in slices:
        if slice_family != family:
            continue
        for slice_name, slice_protocol, number in ports:
            if slice_name != name or slice_protocol != protocol:
                continue
            if everyone:
                return None
            for ip, node, ready, _serving, _terminating, zone_hints, node_hints in endpoints:
                if not ready or zone_hints or node_hints:
                    return None
                local = node == node_name
                if local:
                    any_local = True
                everyone.append(_make(Endpoint, (ip, number, local)))
    if len(everyone) > 1:
        if len({endpoint[0] for endpoint in everyone}) < len(everyone):
            return None
        everyone.sort()
    elif not everyone:
        return NO_ENDPOINTS
    on_node = tuple([endpoint for endpoint in everyone if endpoint[2]]) if any_local else ()
    return _make(EndpointSets, (tuple(everyone), on_node, True))
