"""What a real API server fills in on create: names, addresses, ports and the fields with a default."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from devtools.apiserver.status import ApiStatus

NODE_PORTS = range(30000, 32768)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ServiceAllocator:
    """Hands out cluster addresses and node ports, and refuses what is taken."""

    def __init__(self, service_cidrs: Sequence[str]) -> None:
        self.networks: list[Network] = [ipaddress.ip_network(cidr) for cidr in service_cidrs]
        self._addresses: dict[str, str] = {}
        self._ports: dict[tuple[int, str], str] = {}
        self._addresses_of: dict[str, set[str]] = {}
        self._ports_of: dict[str, set[tuple[int, str]]] = {}
        self._next_address = {network: self._candidates(network) for network in self.networks}

    @staticmethod
    def _candidates(network: Network) -> Iterator[str]:
        # The first address belongs to the API server's own Service, so ordinary ones begin behind it.
        for offset in range(2, network.num_addresses - 1):
            yield str(network[offset])

    def release(self, owner: str) -> None:
        """Give back everything the Service `namespace/name` held."""
        for address in self._addresses_of.pop(owner, ()):
            self._addresses.pop(address, None)
        for port in self._ports_of.pop(owner, ()):
            self._ports.pop(port, None)

    def _claim_address(self, owner: str, address: str) -> None:
        held = self._addresses.setdefault(address, owner)
        if held != owner:
            raise ApiStatus(422, f"Service {owner}: spec.clusterIPs: {address} is already allocated to {held}")
        self._addresses_of.setdefault(owner, set()).add(address)

    def _claim_port(self, owner: str, port: int, protocol: str) -> None:
        held = self._ports.setdefault((port, protocol), owner)
        if held != owner:
            raise ApiStatus(422, f"Service {owner}: nodePort {port}/{protocol} is already allocated to {held}")
        self._ports_of.setdefault(owner, set()).add((port, protocol))

    def _free_address(self, owner: str, network: Network) -> str:
        for address in self._next_address[network]:
            if address not in self._addresses:
                self._claim_address(owner, address)
                return address
        raise ApiStatus(500, f"Service {owner}: range {network} is full")

    def _free_port(self, owner: str, protocol: str) -> int:
        for port in NODE_PORTS:
            if (port, protocol) not in self._ports:
                self._claim_port(owner, port, protocol)
                return port
        raise ApiStatus(500, f"Service {owner}: no node port left")

    def assign(self, owner: str, spec: dict[str, Any]) -> None:
        """Complete a Service's spec in place, with addresses and ports as far as its type needs them."""
        if spec.get("type") == "ExternalName":
            return
        if spec.get("clusterIP") != "None":
            self._assign_addresses(owner, spec)
        wants_node_ports = spec["type"] == "NodePort" or (
            spec["type"] == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts", True)
        )
        ports: list[dict[str, Any]] = spec.get("ports") or []
        for port in ports:
            if port.get("nodePort"):
                self._claim_port(owner, port["nodePort"], port["protocol"])
        if wants_node_ports:
            for port in ports:
                if not port.get("nodePort"):
                    port["nodePort"] = self._free_port(owner, port["protocol"])
        if spec["type"] == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local":
            if spec.get("healthCheckNodePort"):
                self._claim_port(owner, spec["healthCheckNodePort"], "TCP")
            else:
                spec["healthCheckNodePort"] = self._free_port(owner, "TCP")

    def _assign_addresses(self, owner: str, spec: dict[str, Any]) -> None:
        addresses = list(spec.get("clusterIPs") or ([spec["clusterIP"]] if spec.get("clusterIP") else []))
        for address in addresses:
            self._claim_address(owner, address)
        if not addresses:
            for network in self._wanted_networks(spec):
                addresses.append(self._free_address(owner, network))
        if addresses:
            spec["clusterIP"] = addresses[0]
            spec["clusterIPs"] = addresses
            spec.setdefault("ipFamilies", ["IPv6" if ":" in address else "IPv4" for address in addresses])
            spec.setdefault("ipFamilyPolicy", "SingleStack" if len(addresses) == 1 else "RequireDualStack")

    def _wanted_networks(self, spec: Mapping[str, Any]) -> list[Network]:
        families = list(spec.get("ipFamilies") or [])
        if families:
            by_family = {f"IPv{network.version}": network for network in self.networks}
            return [by_family[family] for family in families if family in by_family]
        if spec.get("ipFamilyPolicy") in ("PreferDualStack", "RequireDualStack"):
            return self.networks
        return self.networks[:1]


def default_service(spec: dict[str, Any]) -> None:
    """Fill in the fields of a ServiceSpec that have a default (k8s.io/api core/v1 ServiceSpec)."""
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {}).setdefault("timeoutSeconds", 10800)
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] in ("NodePort", "LoadBalancer") or spec.get("externalIPs"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def default_endpoint_slice(manifest: dict[str, Any]) -> None:
    """Fill in the port fields of an EndpointSlice that have a default (discovery/v1 EndpointPort)."""
    for port in manifest.get("ports") or []:
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")
