"""The rules that kube-proxy 1.36 (nftables mode) would write, as plain dicts, and a packet's way through them.

An independent and slow reading of the same facts as the service table: manifests in, verdicts out, nothing shared with
the product. Written after the order of pkg/proxy/nftables/proxier.go: pre-DNAT firewall, dispatch, checks.
"""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple

Address = Any
Network = Any
Key = tuple[str, str, int]
READY, DRAINING = "ready", "draining"


class Place(NamedTuple):
    ip: str
    port: int
    local: bool


class Entry(NamedTuple):
    place: Place
    ready: bool
    draining: bool
    terminating: bool
    zones: frozenset[str]
    nodes: frozenset[str]


class Way(NamedTuple):
    """Where a front end's chain leads."""

    kind: str
    cluster: tuple[Place, ...]
    local: tuple[Place, ...]
    policy_local: bool
    external_works: bool


class Node(NamedTuple):
    name: str
    zone: str
    primary: str
    addresses: tuple[str, ...]
    pods: Network | None
    masquerade_all: bool
    service_cidr: Network | None
    node_ports_everywhere: bool


class Rules:
    """All maps of one family, IPv4 or IPv6."""

    def __init__(self, manifests: list[dict[str, Any]], node: Node, family: str) -> None:
        self.node = node
        self.family = family
        self.services: dict[Key, Way] = {}
        self.node_ports: dict[tuple[str, int], Way] = {}
        self.refused: dict[Key, str] = {}
        self.refused_node_ports: dict[tuple[str, int], str] = {}
        self.firewall: dict[Key, list[Network]] = {}
        self.cluster_ips: set[str] = set()
        self.hairpins: set[tuple[str, int, str]] = set()
        slices = [manifest for manifest in manifests if manifest["kind"] == "EndpointSlice"]
        for service in manifests:
            if service["kind"] == "Service":
                for port in service["spec"].get("ports", []):
                    self._port(service, port, slices)

    def _port(self, service: dict[str, Any], port: dict[str, Any], slices: list[dict[str, Any]]) -> None:
        spec = service["spec"]
        cluster_ip = _cluster_ip(spec, self.family)
        labels = service["metadata"].get("labels", {})
        if spec.get("type") == "ExternalName" or cluster_ip is None or _PROXY_LABEL in labels:
            return
        protocol = port.get("protocol", "TCP")
        entries = _entries(service, port.get("name", ""), protocol, slices, self.node.name, self.family)
        externals = [ip for ip in spec.get("externalIPs", []) if _family(ip) == self.family]
        ingress = service.get("status", {}).get("loadBalancer", {}).get("ingress", [])
        vips = [
            item["ip"]
            for item in ingress
            if item.get("ip") and _family(item["ip"]) == self.family and item.get("ipMode", "VIP") == "VIP"
        ]
        node_port = port.get("nodePort", 0)
        reachable = bool(node_port or externals or vips)
        internal_local = spec.get("internalTrafficPolicy") == "Local"
        external_local = spec.get("externalTrafficPolicy") == "Local" and (
            spec.get("type", "ClusterIP") != "ClusterIP" or bool(spec.get("externalIPs"))
        )
        usable = [entry for entry in entries if entry.ready] or [entry for entry in entries if entry.draining]
        cluster = tuple(entry.place for entry in self._near(usable) if usable)
        here = [entry for entry in entries if entry.place.local]
        local = tuple(
            entry.place
            for entry in ([entry for entry in here if entry.ready] or [entry for entry in here if entry.draining])
        )
        anywhere = bool(usable)
        inside = bool(local) if internal_local else anywhere
        outside = bool(local) if external_local else anywhere
        refusal = "drop" if anywhere else "reject"
        used: set[Place] = set()
        self.cluster_ips.add(cluster_ip)
        key = (cluster_ip, protocol, port["port"])
        if inside:
            self.services[key] = Way("cluster-ip", cluster, local, internal_local, True)
            used |= set(local if internal_local else cluster)
        else:
            self.refused[key] = refusal
        way = Way("external", cluster, local, external_local, outside)
        if reachable and anywhere:
            used |= set(cluster) | (set(local) if external_local else set())
        ranges = _ranges(spec, vips, self.node.primary, self.family)
        for ip in externals + vips:
            key = (ip, protocol, port["port"])
            if anywhere:
                self.services[key] = way
            if not outside:
                self.refused[key] = refusal
            if ip in vips and ranges:
                self.firewall[key] = ranges
        if node_port:
            if anywhere:
                self.node_ports[protocol, node_port] = way
            if not outside:
                self.refused_node_ports[protocol, node_port] = refusal
        self.hairpins |= {(place.ip, place.port, protocol) for place in used if place.local}

    def _near(self, usable: list[Entry]) -> list[Entry]:
        ready = [entry for entry in usable if entry.ready]
        if not ready:
            return usable
        if all(entry.nodes for entry in ready) and any(self.node.name in entry.nodes for entry in ready):
            return [entry for entry in ready if self.node.name in entry.nodes]
        zone = self.node.zone
        if zone and all(entry.zones for entry in ready) and any(zone in entry.zones for entry in ready):
            return [entry for entry in ready if zone in entry.zones]
        return ready

    def outcome(self, source: str, destination: str, protocol: str, port: int, from_node: bool) -> Any:
        """Return (verdict, {place: masqueraded})."""
        node = self.node
        key = (destination, protocol, port)
        sender = ipaddress.ip_address(source)
        if key in self.firewall and not any(sender in network for network in self.firewall[key]):
            return "drop", {}
        accepts = destination in node.addresses and (node.node_ports_everywhere or destination == node.primary)
        way = self.services.get(key)
        if way is not None:
            chosen = self._through(way, sender, source)
            if chosen is not None:
                return "dnat", self._marked(way, chosen, sender, source, protocol)
        elif accepts:
            way = self.node_ports.get((protocol, port))
            chosen = self._through(way, sender, source) if way is not None else None
            if way is not None and chosen is not None:
                return "dnat", self._marked(way, chosen, sender, source, protocol)
        at_home = destination in node.addresses
        if from_node or not at_home:
            for verdict in (self.refused.get(key), self._guarded(destination)):
                if verdict:
                    return verdict, {}
        if at_home:
            if accepts and (protocol, port) in self.refused_node_ports:
                return self.refused_node_ports[protocol, port], {}
            if key in self.refused:
                return self.refused[key], {}
        return "pass", {}

    def _guarded(self, destination: str) -> str:
        if destination in self.cluster_ips:
            return "reject"
        cidr = self.node.service_cidr
        return "drop" if cidr is not None and ipaddress.ip_address(destination) in cidr else ""

    def _is_pod(self, sender: Address) -> bool:
        return self.node.pods is not None and sender in self.node.pods

    def _through(self, way: Way, sender: Address, source: str) -> tuple[Place, ...] | None:
        if way.kind == "cluster-ip" or not way.policy_local:
            return way.local if way.policy_local else way.cluster
        if self._is_pod(sender) or source in self.node.addresses:
            return way.cluster
        return way.local if way.external_works else None

    def _marked(
        self, way: Way, chosen: tuple[Place, ...], sender: Address, source: str, protocol: str
    ) -> dict[tuple[str, int], bool]:
        if way.kind == "cluster-ip":
            mark = self.node.masquerade_all or (self.node.pods is not None and not self._is_pod(sender))
        elif not way.policy_local:
            mark = True
        else:
            mark = not self._is_pod(sender) and source in self.node.addresses
        return {
            (place.ip, place.port): place.ip not in self.node.addresses
            and (mark or (place.ip == source and (place.ip, place.port, protocol) in self.hairpins))
            for place in chosen
        }


_PROXY_LABEL = "service.kubernetes.io/service-proxy-name"


def _family(text: str) -> str:
    return "IPv6" if ":" in text else "IPv4"


def _cluster_ip(spec: dict[str, Any], wanted: str) -> str | None:
    families = spec.get("ipFamilies")
    if spec.get("clusterIP", "") in ("", "None"):
        return None
    if not families:
        return spec["clusterIP"] if _family(spec["clusterIP"]) == wanted else None
    for family, ip in zip(families, spec.get("clusterIPs", [])):
        if family == wanted:
            return str(ip)
    return None


def _ranges(spec: dict[str, Any], vips: list[str], primary: str, family: str) -> list[Network]:
    texts = [text.strip() for text in spec.get("loadBalancerSourceRanges", [])]
    networks = [ipaddress.ip_network(text, strict=False) for text in texts if _family(text) == family]
    if not networks or any(network.prefixlen == 0 for network in networks):
        return []
    if any(ipaddress.ip_address(primary) in network for network in networks):
        networks += [ipaddress.ip_network(ip) for ip in vips]
    return networks


def _entries(
    service: dict[str, Any], name: str, protocol: str, slices: list[dict[str, Any]], node: str, family: str
) -> list[Entry]:
    found: dict[tuple[str, int], Entry] = {}
    where = service["metadata"]
    for piece in slices:
        labels = piece["metadata"].get("labels", {})
        of = (piece["metadata"]["namespace"], labels.get("kubernetes.io/service-name"))
        if of != (where["namespace"], where["name"]) or "service.kubernetes.io/headless" in labels:
            continue
        if piece["addressType"] != family:
            continue
        for port in piece.get("ports") or []:
            if not port.get("port") or port.get("name") != name or port.get("protocol", "TCP") != protocol:
                continue
            for endpoint in piece["endpoints"]:
                conditions = endpoint.get("conditions", {})
                ready = conditions.get("ready") is not False
                terminating = conditions.get("terminating") is True
                serving = conditions.get("serving") is not False
                hints = endpoint.get("hints", {})
                entry = Entry(
                    Place(endpoint["addresses"][0], port["port"], endpoint.get("nodeName") == node),
                    ready,
                    not ready and serving and terminating,
                    terminating,
                    frozenset(hint["name"] for hint in hints.get("forZones", [])),
                    frozenset(hint["name"] for hint in hints.get("forNodes", [])),
                )
                key = (entry.place.ip, entry.place.port)
                if key not in found or not terminating:
                    found[key] = entry
    return [found[key] for key in sorted(found)]
