"""Neighbouring client addresses.

A client that is pinned by session affinity shows one endpoint only. Its story is therefore played by several clients
side by side, each with an address that every range of the case treats alike.
"""

from __future__ import annotations

import ipaddress

from devtools.conformance.corpus import Case, slice_endpoints

NEIGHBOURS = 24


def has_affinity(case: Case) -> bool:
    return any(
        (manifest.get("spec") or {}).get("sessionAffinity") == "ClientIP"
        for manifest in case.manifests
        if manifest.get("kind") == "Service"
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
