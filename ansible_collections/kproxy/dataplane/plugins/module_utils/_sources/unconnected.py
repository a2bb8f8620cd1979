# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What is not connected among objects that people wrote: a cluster's controllers would have made the other half.

For manifests and given objects only: they are all there is. From an API server, a slice may come before its Service.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import ApiObject
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service


def unconnected(objects: Iterable[ApiObject]) -> list[str]:
    """Return a sentence for each slice that is no Service's and each Service that no slice names, in order of names."""
    services = {}
    slices = []
    for obj in objects:
        if isinstance(obj, Service):
            services[obj.namespace, obj.name] = obj
        elif isinstance(obj, EndpointSlice):
            slices.append(obj)
    found = []
    named = set()
    for piece in sorted(slices, key=lambda one: (one.namespace, one.name)):
        where = "EndpointSlice %s/%s" % (piece.namespace, piece.name)
        if not piece.service:
            found += ["%s %s" % (where, note) for note in piece.notes]
            continue
        named.add((piece.namespace, piece.service))
        if (piece.namespace, piece.service) not in services:
            found.append("%s names Service %s/%s, which is not there" % (where, piece.namespace, piece.service))
    for key, service in sorted(services.items()):
        if service.proxied and key not in named:
            found.append(
                "no EndpointSlice names Service %s/%s, so its clients are refused: nobody makes one from its selector "
                "here; write it, with the label kubernetes.io/service-name: %s" % (*key, key[1])
            )
    return found
