# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""EndpointSlice: the endpoints of one Service and address family, as far as one slice lists them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects import fields
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    AddressError,
    is_special,
    parse_address,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NUMBERS

_SERVICE_NAME_LABEL = "kubernetes.io/service-name"
_HEADLESS_LABEL = "service.kubernetes.io/headless"
_TRIGGER_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"
_ADDRESS_BYTES = {"IPv4": 4, "IPv6": 16}
_NO_HINT: frozenset[str] = frozenset()


class SlicePort(NamedTuple):
    """A port of a slice. The number is never 0: ports without a number give no endpoint and are left out.

    So are ports whose name is null (pkg/proxy/endpointslicecache.go); a missing name is the empty one that the API
    server fills in.
    """

    name: str
    protocol: int
    port: int


class SliceEndpoint(NamedTuple):
    """One endpoint of a slice, with the conditions' defaults filled in.

    A missing ready is true, a missing serving is true, a missing terminating is false
    (pkg/proxy/endpointslicecache.go). Hints are empty where the endpoint has none (KEP-2433, KEP-3015).
    """

    ip: bytes
    node_name: str
    ready: bool
    serving: bool
    terminating: bool
    zone_hints: frozenset[str]
    node_hints: frozenset[str]


class EndpointSlice(NamedTuple):
    """A slice. service is empty where the slice names none, and then it is nobody's; family is 4 or 6, 0 for FQDN."""

    namespace: str
    name: str
    service: str
    family: int
    ports: tuple[SlicePort, ...]
    endpoints: tuple[SliceEndpoint, ...]
    trigger_time: str
    notes: tuple[str, ...]


def parse_endpointslice(
    manifest: Mapping[str, Any], metadata: Mapping[str, Any], namespace: str, name: str
) -> EndpointSlice:
    """Return the slice of a manifest. Raises fields.FieldError for one that is unusable.

    An endpoint with a bad address costs only itself and is noted; only the first address of an endpoint counts.
    """
    labels = fields.labels(metadata)
    address_type = fields.choice(manifest, "addressType", "addressType", ("IPv4", "IPv6", "FQDN"))
    service = labels.get(_SERVICE_NAME_LABEL, "")
    annotations = fields.mapping(metadata, "annotations", "metadata.annotations")
    trigger_time = annotations.get(_TRIGGER_ANNOTATION, "")
    width = _ADDRESS_BYTES.get(address_type, 0)
    if not service or not width or _HEADLESS_LABEL in labels:
        named = service or _HEADLESS_LABEL in labels
        note = "names no Service: write the label %s" % _SERVICE_NAME_LABEL
        return EndpointSlice(namespace, name, "", 0, (), (), "", () if named else (note,))
    notes: list[str] = []
    endpoints: list[SliceEndpoint] = []
    for index, item in enumerate(fields.sequence(manifest, "endpoints", "endpoints")):
        endpoint = _endpoint(item, index, width, notes)
        if endpoint is not None:
            endpoints.append(endpoint)
    return EndpointSlice(
        namespace,
        name,
        service,
        4 if width == 4 else 6,
        _ports(manifest),
        tuple(endpoints),
        trigger_time if isinstance(trigger_time, str) else "",
        tuple(notes),
    )


def _endpoint(item: Any, index: int, width: int, notes: list[str]) -> SliceEndpoint | None:
    if not isinstance(item, Mapping):
        raise fields.FieldError("endpoints[%d] must be an object" % index)
    addresses = fields.sequence(item, "addresses", "endpoints[].addresses")
    if not addresses:
        notes.append("endpoints[%d] has no address; it is left out" % index)
        return None
    try:
        ip = parse_address(addresses[0])
    except AddressError as error:
        notes.append("endpoints[%d]: %s; it is left out" % (index, error))
        return None
    if len(ip) != width:
        notes.append("endpoints[%d]: %s is not of the slice's addressType; it is left out" % (index, addresses[0]))
        return None
    if is_special(ip):
        notes.append("endpoints[%d]: %s is no address of one endpoint; it is left out" % (index, addresses[0]))
        return None
    conditions = fields.mapping(item, "conditions", "endpoints[].conditions")
    ready = fields.boolean(conditions, "ready", "endpoints[].conditions.ready")
    serving = fields.boolean(conditions, "serving", "endpoints[].conditions.serving")
    terminating = fields.boolean(conditions, "terminating", "endpoints[].conditions.terminating")
    hints = item.get("hints")
    return SliceEndpoint(
        ip,
        sys.intern(fields.text(item, "nodeName", "endpoints[].nodeName")),
        ready is not False,
        serving is not False,
        terminating is True,
        _hint_names(hints, "forZones") if hints else _NO_HINT,
        _hint_names(hints, "forNodes") if hints else _NO_HINT,
    )


def _hint_names(hints: Any, key: str) -> frozenset[str]:
    if not isinstance(hints, Mapping):
        raise fields.FieldError("endpoints[].hints must be an object")
    names = set()
    for item in fields.sequence(hints, key, "endpoints[].hints." + key):
        if not isinstance(item, Mapping):
            raise fields.FieldError("endpoints[].hints.%s must be a list of objects" % key)
        names.add(sys.intern(fields.text(item, "name", "endpoints[].hints.%s[].name" % key)))
    return frozenset(names)


def _ports(manifest: Mapping[str, Any]) -> tuple[SlicePort, ...]:
    found: list[SlicePort] = []
    for index, item in enumerate(fields.sequence(manifest, "ports", "ports")):
        path = "ports[%d]" % index
        if not isinstance(item, Mapping):
            raise fields.FieldError("%s must be an object" % path)
        number = fields.integer(item, "port", path + ".port", 0, 65535)
        protocol = fields.choice(item, "protocol", path + ".protocol", ("TCP", "UDP", "SCTP"))
        if number and item.get("name", "") is not None:
            found.append(SlicePort(sys.intern(fields.text(item, "name", path + ".name")), NUMBERS[protocol], number))
    return tuple(found)
