"""Neighbouring client addresses.

A client that is pinned by session affinity shows one endpoint only. Its story is therefore played by several clients
side by side, each with an address that every range of the case treats alike.
"""

from __future__ import annotations

import ipaddress

from devtools.conformance.corpus import Case, Destination, Manifest, slice_endpoints

NEIGHBOURS = 32
"""Of so many clients, at least 8 for each of up to 4 endpoints, one endpoint is missed once in 2,500 runs at most."""


def has_affinity(case: Case) -> bool:
    return any(_pins(manifest) for manifest in case.manifests)


def is_pinned(case: Case, to: Destination) -> bool:
    """Whether a destination belongs to a Service that has session affinity at any point of the case."""
    return any(_pins(manifest) and _dials(manifest, to) for manifest in case.manifests)


def _pins(manifest: Manifest) -> bool:
    return manifest.get("kind") == "Service" and (manifest.get("spec") or {}).get("sessionAffinity") == "ClientIP"


def _dials(service: Manifest, to: Destination) -> bool:
    spec = service["spec"]
    ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    addresses = {
        spec.get("clusterIP"),
        *(spec.get("clusterIPs") or ()),
        *(spec.get("externalIPs") or ()),
        *(entry.get("ip") for entry in ingress),
    }
    return any(
        (port.get("protocol") or "TCP") == to.protocol
        and (port.get("nodePort") == to.port or (port.get("port") == to.port and to.ip in addresses))
        for port in spec.get("ports") or ()
    )


def doubles(case: Case) -> dict[str, list[str]]:
    """Further addresses for each client that can have some: not on the node, not an endpoint."""
    if not has_affinity(case):
        return {}
    endpoints = {address.ip for address, _ in slice_endpoints(case.manifests)}
    clients = {probe.client.ip for probe in case.probes if not probe.client.on_node}
    taken = endpoints | clients | set(case.node.addresses) | {probe.to.ip for probe in case.probes}
    found: dict[str, list[str]] = {}
    for ip in sorted(clients - endpoints):
        found[ip] = _neighbours(ip, taken, case.cidrs)
        taken.update(found[ip])
    return found


def _neighbours(ip: str, taken: set[str], cidrs: tuple[str, ...]) -> list[str]:
    address = ipaddress.ip_address(ip)
    networks = [network for network in map(ipaddress.ip_network, cidrs) if network.version == address.version]
    home = ipaddress.ip_network(f"{ip}/{'24' if address.version == 4 else '120'}", strict=False)
    membership = [address in network for network in networks]
    found: list[str] = []
    for candidate in home.hosts():
        if len(found) == NEIGHBOURS - 1:
            break
        text = str(candidate)
        if text not in taken and [candidate in network for network in networks] == membership:
            found.append(text)
    return found
