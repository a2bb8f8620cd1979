"""Manifests for the tests of this folder."""

from __future__ import annotations

from typing import Any

Manifest = dict[str, Any]


def service(name: str, *, namespace: str = "shop", labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """Return a Service; the API server assigns its address unless one is given."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"ports": [{"name": "http", "port": 80}], **spec},
    }


def endpoint_slice(name: str, *addresses: str, of: str, labels: dict[str, str] | None = None) -> Manifest:
    """Return a hand-written EndpointSlice of the Service `of`."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": {
                "kubernetes.io/service-name": of,
                "endpointslice.kubernetes.io/managed-by": "kproxy-tests",
                **(labels or {}),
            },
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
    }


def node(name: str, zone: str = "a") -> Manifest:
    """Return a Node with a zone."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
    }
