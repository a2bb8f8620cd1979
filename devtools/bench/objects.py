"""A cluster's worth of Services and EndpointSlices, made up."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

NODES = 7
NODE_NAME = "node-1"
CLUSTER_CIDR = "10.128.0.0/9"
SERVICE_CIDR = "10.96.0.0/12"
_FIRST_SERVICE = int(ipaddress.IPv4Address("10.96.0.16"))
_FIRST_ENDPOINT = int(ipaddress.IPv4Address("10.128.0.1"))


def service_address(number: int) -> str:
    """Return the cluster IP of a Service."""
    return str(ipaddress.IPv4Address(_FIRST_SERVICE + number))


def endpoint_address(number: int, endpoints: int, index: int = 0) -> str:
    """Return the address of an endpoint of a Service, in a cluster where each has so many."""
    return str(ipaddress.IPv4Address(_FIRST_ENDPOINT + number * (endpoints + 1) + index))


def service(number: int) -> dict[str, Any]:
    """Return one ClusterIP Service."""
    address = service_address(number)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": _namespace(number), "name": f"service-{number}"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "selector": {"app": f"service-{number}"},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
    }


def endpointslice(number: int, endpoints: int, extra: int = 0) -> dict[str, Any]:
    """Return the slice of one Service; extra endpoints are new ones, as after scaling up."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": _namespace(number),
            "name": f"service-{number}-slice",
            "labels": {
                "kubernetes.io/service-name": f"service-{number}",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [
            {
                "addresses": [endpoint_address(number, endpoints, index)],
                "conditions": {"ready": True, "serving": True, "terminating": False},
                "nodeName": f"node-{(number + index) % NODES}",
                "targetRef": {"kind": "Pod", "namespace": _namespace(number), "name": f"service-{number}-pod-{index}"},
            }
            for index in range(endpoints + extra)
        ],
    }


def cluster(services: int, endpoints: int) -> Iterator[dict[str, Any]]:
    """Yield all Services with their slices."""
    for number in range(services):
        yield service(number)
        yield endpointslice(number, endpoints)


def _namespace(number: int) -> str:
    return f"team-{number % 50}"
