# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Node: what this node's own object says: zone, addresses, pod ranges, whether it may take traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects import fields
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    AddressError,
    Prefix,
    is_loopback,
    parse_address,
    parse_prefix,
)

_ZONE_LABEL = "topology.kubernetes.io/zone"
_AUTOSCALER_TAINT = "ToBeDeletedByClusterAutoscaler"
_UNSPECIFIED = (b"\x00" * 4, b"\x00" * 16)


class Node(NamedTuple):
    """A Node. addresses holds at most one per family, the primary one of it.

    eligible is False for a node that load balancers should no longer send traffic to: it is being deleted, or
    carries the autoscaler's ToBeDeletedByClusterAutoscaler taint (KEP-3836).
    """

    name: str
    zone: str
    addresses: tuple[bytes, ...]
    pod_cidrs: tuple[Prefix, ...]
    eligible: bool
    notes: tuple[str, ...]


def parse_node(manifest: Mapping[str, Any], metadata: Mapping[str, Any], name: str) -> Node:
    """Return the Node of a manifest. Raises fields.FieldError for one that is unusable."""
    spec = fields.mapping(manifest, "spec", "spec")
    notes: list[str] = []
    taints = fields.sequence(spec, "taints", "spec.taints")
    doomed = any(isinstance(taint, Mapping) and taint.get("key") == _AUTOSCALER_TAINT for taint in taints)
    return Node(
        name,
        fields.labels(metadata).get(_ZONE_LABEL, ""),
        _addresses(manifest, notes),
        _pod_cidrs(spec, notes),
        not doomed and not metadata.get("deletionTimestamp"),
        tuple(notes),
    )


def _addresses(manifest: Mapping[str, Any], notes: list[str]) -> tuple[bytes, ...]:
    """Return one address per family, InternalIP before ExternalIP, loopback and unspecified ones left out."""
    status = fields.mapping(manifest, "status", "status")
    entries = [item for item in fields.sequence(status, "addresses", "status.addresses") if isinstance(item, Mapping)]
    found: dict[int, bytes] = {}
    for wanted in ("InternalIP", "ExternalIP"):
        for item in entries:
            if item.get("type") != wanted:
                continue
            try:
                packed = parse_address(item.get("address") or "")
            except AddressError as error:
                notes.append("status.addresses: %s; it is left out" % error)
                continue
            if not is_loopback(packed) and packed not in _UNSPECIFIED:
                found.setdefault(len(packed), packed)
    return tuple(found.values())


def _pod_cidrs(spec: Mapping[str, Any], notes: list[str]) -> tuple[Prefix, ...]:
    texts = fields.sequence(spec, "podCIDRs", "spec.podCIDRs")
    if not texts and spec.get("podCIDR"):
        texts = [spec["podCIDR"]]
    found: list[Prefix] = []
    for text in texts:
        try:
            found.append(parse_prefix(text))
        except AddressError as error:
            notes.append("spec.podCIDRs: %s; it is left out" % error)
    return tuple(found)
