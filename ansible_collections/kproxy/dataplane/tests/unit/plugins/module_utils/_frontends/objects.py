"""Short ways to write objects for tests of the service table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert, parse


def service(name: str = "web", namespace: str = "shop", created: str = "", **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name}
    if created:
        metadata["creationTimestamp"] = created
    ingress = spec.pop("ingress", None)
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"clusterIP": "10.96.0.5", "ports": [{"name": "http", "port": 80}], **spec},
    }
    if ingress:
        manifest["status"] = {"loadBalancer": {"ingress": [{"ip": ip} for ip in ingress]}}
    return manifest


def endpoints(
    *addresses: str, service: str = "web", namespace: str = "shop", node: str = "n2", **fields: Any
) -> dict[str, Any]:
    """A slice whose endpoints are on `node`, or on the node behind an @."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace,
            "name": fields.pop("name", f"{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv6" if addresses and ":" in addresses[0] else "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [
            {"addresses": [address.partition("@")[0]], "nodeName": address.partition("@")[2] or node}
            for address in addresses
        ],
        **fields,
    }


def upserts(*manifests: dict[str, Any]) -> Sequence[Change]:
    return [Upsert(obj) for obj in map(parse, manifests) if obj is not None]


def config(**values: Any) -> ProxyConfig:
    return ProxyConfig.from_mapping({"nodeName": "n1", "clusterCIDR": "10.244.0.0/16,fd00:10:244::/48", **values})
