# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What kproxyd reads from the API server: kube-proxy's own resources and selectors, and nothing more.

Source: Kubernetes 1.36 cmd/kube-proxy/app/server.go. The ClusterRole system:node-proxier allows exactly these.
"""

from __future__ import annotations

from typing import NamedTuple


class Resource(NamedTuple):
    """One list and watch. An optional resource may be unknown to the server or closed to us."""

    kind: str
    path: str
    label_selector: str = ""
    field_selector: str = ""
    optional: bool = False

    def selectors(self) -> dict[str, str]:
        """Return the query parameters that select."""
        query = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {key: value for key, value in query.items() if value}


def watched(node_name: str) -> tuple[Resource, ...]:
    """Return the resources a proxy on this node needs."""
    return (
        Resource(
            "Service",
            "/api/v1/services",
            "!service.kubernetes.io/service-proxy-name",
            "spec.clusterIP!=None",
        ),
        Resource("EndpointSlice", "/apis/discovery.k8s.io/v1/endpointslices", "!service.kubernetes.io/headless"),
        Resource("Node", "/api/v1/nodes", field_selector=f"metadata.name={node_name}"),
        # v1 since Kubernetes 1.33; without it no service range is known: unused addresses in it are not refused.
        Resource("ServiceCIDR", "/apis/networking.k8s.io/v1/servicecidrs", optional=True),
    )
