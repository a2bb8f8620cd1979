# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints: the older form of EndpointSlices, which a service proxy never reads.

In a cluster a controller mirrors those that people write into slices (KEP-0752). Among manifests nobody does, so they
are refused by name, unless a slice says the same already or the Service is none of the proxy's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service

ENDPOINTS = "Endpoints"
#: What old programs elect their leaders by; the controller does not mirror those either.
_LEADER_ANNOTATION = "control-plane.alpha.kubernetes.io/leader"


def check_mirrored(manifest: Mapping[str, Any], namespace: str, name: str) -> None:
    """Raise Refusal for an Endpoints object that stands for endpoints of a Service."""
    metadata = manifest.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if isinstance(annotations, Mapping) and _LEADER_ANNOTATION in annotations:
        return
    raise Refusal(
        ENDPOINTS,
        namespace,
        name,
        "is not read, and nobody mirrors it here: write an EndpointSlice (apiVersion: discovery.k8s.io/v1) with the "
        "label kubernetes.io/service-name: %s" % name,
    )


def needless(refusals: Iterable[Refusal], objects: Iterable[Any]) -> set[tuple[str, str]]:
    """Return (namespace, name) of refused Endpoints that nobody misses: slices are there, or the Service takes none."""
    refused = {(one.namespace, one.name) for one in refusals if one.kind == ENDPOINTS}
    if not refused:
        return set()
    provided = set()
    for obj in objects:
        if isinstance(obj, EndpointSlice):
            provided.add((obj.namespace, obj.service))
        elif isinstance(obj, Service) and not obj.proxied:
            provided.add((obj.namespace, obj.name))
    return refused & provided
