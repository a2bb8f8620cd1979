# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The Services that a new node needs before anybody can be asked for Services: the API server and cluster DNS.

Both have fixed addresses in the primary range of the Services: the first is the API server's (made by itself), the
tenth cluster DNS's (made by kubeadm). Neither has an address of the other IP version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap.network import (
    NetworkError,
    address_of,
    parse_ranges,
)

API_SERVER_NUMBER = 1
DNS_NUMBER = 10


def first_services(service_ranges: Sequence[str], api_servers: Sequence[str], port: int = 6443) -> list[dict[str, Any]]:
    """Return the objects, as the API server would list them.

    Cluster DNS has no endpoints yet, so that it refuses at once until it has.

    Args:
        service_ranges: ranges of the Services, the primary one first.
        api_servers: addresses of the API servers that run already, or are about to.
        port: where they listen.

    Raises:
        NetworkError: an address is none, or of the other IP version, or the range is too small.
    """
    primary = parse_ranges("service ranges", service_ranges)[0]
    addresses = [address_of(item) for item in api_servers]
    if not addresses:
        raise NetworkError("there is no API server; give the address of at least one control plane node")
    strangers = [str(item) for item in addresses if item.version != primary.version]
    if strangers:
        raise NetworkError(
            f"API server {', '.join(strangers)}: not of the IP version of the primary service range {primary}; give"
            " bootstrap_node_address of that version, or put the other range first"
        )
    if primary.num_addresses <= DNS_NUMBER:
        raise NetworkError(f"service range {primary} is too small: cluster DNS gets its address number {DNS_NUMBER}")
    family = f"IPv{primary.version}"
    return [
        _service("default", "kubernetes", str(primary[API_SERVER_NUMBER]), family, [("https", "TCP", 443, port)]),
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "default",
                "name": "kubernetes",
                "labels": {"kubernetes.io/service-name": "kubernetes"},
            },
            "addressType": family,
            "ports": [{"name": "https", "protocol": "TCP", "port": port}],
            "endpoints": [{"addresses": [str(item)], "conditions": {"ready": True}} for item in addresses],
        },
        _service(
            "kube-system",
            "kube-dns",
            str(primary[DNS_NUMBER]),
            family,
            [("dns", "UDP", 53, 53), ("dns-tcp", "TCP", 53, 53)],
        ),
    ]


def _service(
    namespace: str, name: str, address: str, family: str, ports: Sequence[tuple[str, str, int, int]]
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": [family],
            "ipFamilyPolicy": "SingleStack",
            "ports": [
                {"name": name, "protocol": protocol, "port": port, "targetPort": target}
                for name, protocol, port, target in ports
            ],
        },
    }
