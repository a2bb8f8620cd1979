"""The node that the tests of the daemon run it on, and the objects that it is told."""

from __future__ import annotations

from typing import Any

NODE_IP = "192.0.2.11"
POD_IPS = ("10.244.1.21", "10.244.1.22", "10.244.1.23")
CLUSTER_IP = "10.96.7.7"
PORT = 8080


def service(name: str = "web", cluster_ip: str = CLUSTER_IP, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "clusterIP": cluster_ip,
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": PORT}],
            **spec,
        },
    }


def endpoints(*ips: str, name: str = "web") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": PORT}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}, "nodeName": "n1"} for ip in ips],
    }


def this_node(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}], **status},
    }
