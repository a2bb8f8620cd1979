"""Random Services and slices that differ in everything which decides what happens to a packet. Seeded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig

NODE = "n1"
PRIMARY = {"IPv4": "192.0.2.11", "IPv6": "2001:db8::11"}
NODE_ADDRESSES = {"IPv4": (PRIMARY["IPv4"], "192.0.2.111"), "IPv6": (PRIMARY["IPv6"], "2001:db8::111")}
POD_RANGES = {"IPv4": ("10.244.0.0/16", "10.244.1.0/24"), "IPv6": ("fd00:244::/32", "fd00:244:1::/48")}
SERVICE_RANGES = {"IPv4": "10.96.0.0/16", "IPv6": "fd00:96::/112"}
FAMILIES = ("IPv4", "IPv6")
_NODES = ("n1", "n2", "n3", None)
_FLAGS = (None, True, False)


class RandomCluster:
    """A handful of Services, few enough addresses that they meet each other's."""

    def __init__(self, seed: int, services: int = 8) -> None:
        self._random = random.Random(seed)
        self._services = services

    def manifests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for index in range(self._services):
            found += self.service_and_slices(index)
        return found

    def service_and_slices(self, index: int) -> list[dict[str, Any]]:
        """One Service with its slices; the same index gives another version of them."""
        name = f"s{index}"
        service = self._service(name, index)
        return [service, *self.slices(index)]

    def slices(self, index: int) -> list[dict[str, Any]]:
        """At most two slices of each family."""
        return [
            self._slice(f"s{index}", number, family)
            for family in FAMILIES
            for number in range(self._random.choice([0, 1, 1, 2]))
        ]

    def _service(self, name: str, index: int) -> dict[str, Any]:
        choose = self._random
        kind = choose.choice(["ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer", "ExternalName"])
        ports = []
        for number, (port_name, protocol, port) in enumerate(
            choose.sample([("http", "TCP", 80), ("dns", "UDP", 53), ("dns-tcp", "TCP", 53), ("sig", "SCTP", 80)], 2)
        ):
            ports.append({"name": port_name, "protocol": protocol, "port": port})
            if kind in ("NodePort", "LoadBalancer") and choose.random() < 0.8:
                # One has the numbers that others have at the node's own addresses.
                ports[-1]["nodePort"] = port if index == 1 else 30000 + index * 2 + number
        spec: dict[str, Any] = {"type": kind, "clusterIP": f"10.96.0.{index + 1}", "ports": ports}
        families = choose.choice([None, ["IPv4"], ["IPv6"], ["IPv4", "IPv6"], ["IPv6", "IPv4"]])
        if families:
            spec.update(ipFamilies=families, clusterIPs=[address("cluster", family, index + 1) for family in families])
            spec["clusterIP"] = spec["clusterIPs"][0]
        for field in ("internalTrafficPolicy", "externalTrafficPolicy"):
            if choose.random() < 0.6:
                spec[field] = choose.choice(["Cluster", "Local"])
        if choose.random() < 0.4:
            # They may be the Service's own VIPs, and addresses of the node.
            spec["externalIPs"] = [address("external", family, index + 1) for family in FAMILIES]
            if index == 0:
                spec["externalIPs"] += PRIMARY.values()
        if choose.random() < 0.3:
            spec["loadBalancerSourceRanges"] = choose.sample(
                [
                    " 203.0.113.0/25",
                    "10.244.1.0/24 ",
                    "192.0.2.0/24",
                    "203.0.113.9/24",
                    "0.0.0.0/0",
                    "fd00::/8",
                    "2001:db8::/64",
                    "::/0",
                    "2001:db8:9::1/64",
                ],
                3,
            )
        if choose.random() < 0.2:
            spec.update(sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}})
        metadata: dict[str, Any] = {"namespace": "shop", "name": name}
        if choose.random() < 0.05:
            metadata["labels"] = {"service.kubernetes.io/service-proxy-name": ""}
        manifest: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
        if kind == "LoadBalancer" or choose.random() < 0.1:
            manifest["status"] = {"loadBalancer": {"ingress": self._ingress(index)}}
        return manifest

    def _ingress(self, index: int) -> list[dict[str, str]]:
        found = [{"hostname": "lb.example.org"}]
        for family in FAMILIES:
            found.append({"ip": address("external", family, self._random.choice([index + 1, index + 101]))})
            if self._random.random() < 0.3:
                mode = self._random.choice(["VIP", "Proxy"])
                found.append({"ip": address("external", family, index + 201), "ipMode": mode})
        return found

    def _slice(self, service: str, number: int, family: str) -> dict[str, Any]:
        choose = self._random
        endpoints = [self._endpoint(family) for _number in range(choose.choice([0, 1, 2, 3, 5]))]
        # An address may pass from a pod that terminates to another; which of two alike would count is not defined.
        told_apart = {(one["addresses"][0], one["conditions"].get("terminating") is True): one for one in endpoints}
        labels = {"kubernetes.io/service-name": service}
        if choose.random() < 0.05:
            labels["service.kubernetes.io/headless"] = ""
        ports: list[dict[str, Any]] = [
            {"name": "http", "protocol": "TCP", "port": 8080 + number},
            {"name": "dns", "protocol": "UDP", "port": 53},
            {"name": "dns-tcp", "protocol": "TCP", "port": 53},
            {"name": "sig", "protocol": "SCTP", "port": 9000},
        ]
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"namespace": "shop", "name": f"{service}-{family.lower()}-{number}", "labels": labels},
            "addressType": family,
            "ports": choose.sample(ports, choose.choice([0, 3, 4, 4])),
            # Two slices of a Service list different addresses: which of two would count is not defined.
            "endpoints": [one for (ip, _leaves), one in told_apart.items() if int(ip[-1]) % 2 == number],
        }

    def _endpoint(self, family: str) -> dict[str, Any]:
        choose = self._random
        node = choose.choice(_NODES)
        subnet = int(node[1:]) if node else 4
        ip = pod(family, subnet, choose.choice([2, 3, 4, 5])) if choose.random() < 0.95 else PRIMARY[family]
        endpoint: dict[str, Any] = {"addresses": [ip], "conditions": {}}
        if node:
            endpoint["nodeName"] = node
        ready = choose.choice([None, True, True, False])
        for name, value in (
            ("ready", ready),
            ("serving", choose.choice(_FLAGS)),
            ("terminating", choose.choice(_FLAGS)),
        ):
            if value is not None:
                endpoint["conditions"][name] = value
        hints: dict[str, Any] = {}
        if choose.random() < 0.7:
            hints["forZones"] = [{"name": zone} for zone in choose.sample(["a", "b"], choose.choice([1, 2]))]
        if choose.random() < 0.5:
            hints["forNodes"] = [{"name": choose.choice(["n1", "n2"])}]
        if hints:
            endpoint["hints"] = hints
        return endpoint

    def node(self, zone: str) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": zone} if zone else {}},
            "status": {"addresses": [{"type": "InternalIP", "address": ip} for ip in PRIMARY.values()]},
        }

    @staticmethod
    def service_cidr() -> dict[str, Any]:
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": list(SERVICE_RANGES.values())},
        }

    def destinations(self, choose: random.Random, family: str) -> Iterator[tuple[str, str, int]]:
        """Everything a front end of a family may be at, and some places where none is."""
        addresses = [*NODE_ADDRESSES[family], address("cluster", family, 99), address("external", family, 99)]
        for index in range(self._services):
            addresses += [address("cluster", family, index + 1)]
            addresses += [address("external", family, index + offset) for offset in (1, 101, 201)]
        for ip in addresses:
            yield ip, "TCP", 80
            yield ip, choose.choice(["UDP", "SCTP"]), choose.choice([53, 80])
        for ip in NODE_ADDRESSES[family]:
            for port in range(30000, 30000 + 2 * self._services):
                yield ip, choose.choice(["TCP", "UDP", "SCTP"]), port


def address(kind: str, family: str, number: int) -> str:
    """An address of Services: "cluster" or "external"."""
    prefix = {"cluster": ("10.96.0.", "fd00:96::"), "external": ("198.51.100.", "2001:db8:51::")}[kind]
    return f"{prefix[FAMILIES.index(family)]}{number}"


def pod(family: str, subnet: int, number: int) -> str:
    """A pod's address in the range of the node of that number."""
    return f"10.244.{subnet}.{number}" if family == "IPv4" else f"fd00:244:{subnet}::{number}"


class RandomChanges:
    """A story of batches: Services and slices that come, change and go, a node that changes its zone."""

    def __init__(self, seed: int, services: int = 8) -> None:
        self._random = random.Random(seed)
        self._cluster = RandomCluster(seed, services)
        self._services = services
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}

    def batch(self) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Return the objects that are new or changed and (kind, name) of those that are gone; self.objects follows."""
        changed: dict[tuple[str, str], dict[str, Any]] = {}
        gone: list[tuple[str, str]] = []
        for _number in range(self._random.choice([1, 1, 2, 5])):
            index = self._random.randrange(self._services)
            action = self._random.choice(["whole", "service", "slices", "slices", "delete", "node", "cidr"])
            fresh: list[dict[str, Any]] = []
            if action in ("whole", "service"):
                fresh += self._cluster.service_and_slices(index)[: None if action == "whole" else 1]
            elif action == "slices":
                fresh += self._cluster.slices(index)
            elif action == "node":
                fresh.append(self._changed_node())
            elif action == "cidr":
                fresh.append(self._cluster.service_cidr())
            elif self.objects:
                gone.append(self._random.choice(sorted(self.objects)))
            changed.update({(piece["kind"], piece["metadata"]["name"]): piece for piece in fresh})
        # A Node that is deleted stays what it was: that would be no property of the objects alone.
        gone = [key for key in gone if key not in changed and key[0] != "Node"]
        self.objects.update(changed)
        for key in gone:
            self.objects.pop(key, None)
        return list(changed.values()), gone

    def _changed_node(self) -> dict[str, Any]:
        choose = self._random
        node = self._cluster.node(choose.choice(["", "a", "b"]))
        node["spec"] = {
            "podCIDRs": choose.sample([ranges[1] for ranges in POD_RANGES.values()], choose.choice([0, 1, 2]))
        }
        primary = [choose.choice(addresses) for addresses in NODE_ADDRESSES.values()]
        node["status"]["addresses"] = [{"type": "InternalIP", "address": ip} for ip in primary if choose.random() < 0.9]
        return node


def settings(seed: int) -> ProxyConfig:
    """Settings of the node under which changes of its own object matter."""
    choose = random.Random(seed)
    return ProxyConfig.from_mapping(
        {
            "nodeName": NODE,
            "detectLocalMode": choose.choice(["ClusterCIDR", "NodeCIDR"]),
            "clusterCIDR": [ranges[0] for ranges in POD_RANGES.values()],
            "nodePortAddresses": choose.choice([["primary"], ["192.0.2.0/24", "2001:db8::/64"], ["0.0.0.0/0"]]),
            "masqueradeAll": choose.random() < 0.2,
        }
    )
