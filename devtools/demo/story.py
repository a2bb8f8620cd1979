"""What the demo changes while everything runs: it edits objects as a cluster's controllers would."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from devtools.lab.topology import Node

Manifest = dict[str, Any]


def slices_of(manifests: Sequence[Manifest], namespace: str, service: str) -> list[Manifest]:
    """Return the slices of a Service."""
    return [
        item
        for item in manifests
        if item["kind"] == "EndpointSlice"
        and item["metadata"]["namespace"] == namespace
        and item["metadata"]["labels"]["kubernetes.io/service-name"] == service
    ]


def scaled_up(
    manifests: Sequence[Manifest], namespace: str, service: str, node: Node, pod: str, host: int
) -> list[Manifest]:
    """Return the slices of a Service with one more pod."""
    changed = copy.deepcopy(slices_of(manifests, namespace, service))
    for item in changed:
        ipv4 = item["addressType"] == "IPv4"
        prefix = f"10.244.{node.number}." if ipv4 else f"fd00:10:244:{node.number}::"
        item["endpoints"].append(_endpoint(namespace, pod, f"{prefix}{host}", node.name))
    return changed


def drained(manifests: Sequence[Manifest], namespace: str, service: str, pod: str) -> list[Manifest]:
    """Return the slices of a Service with one pod terminating, still serving what it has."""
    changed = copy.deepcopy(slices_of(manifests, namespace, service))
    for item in changed:
        for endpoint in item["endpoints"]:
            if endpoint["targetRef"]["name"] == pod:
                endpoint["conditions"] = {"ready": False, "serving": True, "terminating": True}
    return changed


def without(manifests: Sequence[Manifest], namespace: str, service: str, pod: str) -> list[Manifest]:
    """Return the slices of a Service without one pod."""
    changed = copy.deepcopy(slices_of(manifests, namespace, service))
    for item in changed:
        item["endpoints"] = [entry for entry in item["endpoints"] if entry["targetRef"]["name"] != pod]
    return changed


def replaced(manifests: Sequence[Manifest], changed: Sequence[Manifest]) -> list[Manifest]:
    """Return all manifests with the changed ones in place of those of the same name."""
    by_name = {_identity(item): item for item in changed}
    return [by_name.get(_identity(item), item) for item in manifests]


def removed(manifests: Sequence[Manifest], namespace: str, service: str) -> tuple[list[Manifest], list[Manifest]]:
    """Return (what is left, what goes) when a Service and its slices are deleted."""
    gone = slices_of(manifests, namespace, service) + [
        item
        for item in manifests
        if item["kind"] == "Service"
        and (item["metadata"]["namespace"], item["metadata"]["name"]) == (namespace, service)
    ]
    names = {_identity(item) for item in gone}
    return [item for item in manifests if _identity(item) not in names], gone


def _endpoint(namespace: str, pod: str, address: str, node: str) -> Manifest:
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": node,
        "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod},
    }


def _identity(item: Manifest) -> tuple[str, str, str]:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
