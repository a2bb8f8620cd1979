# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the service table says about one packet, without sending it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.client import NODE, OUTSIDER, POD
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    CLUSTER_IP,
    DNAT,
    DROP,
    NODE_PORT,
    PASS,
    REJECT,
    RELAY,
    Frontend,
    FrontendKey,
    Target,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import NodeRules, ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import family_of, is_loopback
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint


class Packet(NamedTuple):
    """The first packet of a connection. interface: where it came in, empty if this node sends it itself.

    protocol is an IP protocol number; port is 0 for protocols without ports.
    """

    source: bytes
    destination: bytes
    protocol: int
    port: int
    interface: str = ""


class Outcome(NamedTuple):
    """What happens to a packet.

    verdict: dnat, reject, drop, pass or relay (a user-space relay on loopback). endpoints: where dnat or relay may
    lead, each with equal chance. masqueraded: those of them that see an address of this node. reason: one sentence
    for people.
    """

    verdict: str
    reason: str
    frontend: Frontend | None = None
    endpoints: tuple[Endpoint, ...] = ()
    masqueraded: frozenset[Endpoint] = frozenset()


def simulate(table: ServiceTable, packet: Packet, local_addresses: Collection[bytes]) -> Outcome:
    """Return what the table does to a packet that reaches this node. local_addresses: those of its interfaces."""
    family = family_of(packet.destination)
    rules = table.rules.get(family)
    if rules is None:
        return Outcome(PASS, "this address family is not served")
    client = classify(packet, rules, local_addresses)
    frontend = _source_checked(table, packet, family)
    if frontend is not None:
        return Outcome(DROP, "the source is in none of the Service's loadBalancerSourceRanges", frontend)
    accepts = accepts_node_ports(packet.destination, rules, local_addresses)
    by_address = table.frontends.get(FrontendKey(family, packet.destination, packet.protocol, packet.port))
    by_node_port = table.frontends.get(FrontendKey(family, b"", packet.protocol, packet.port)) if accepts else None
    for frontend in (by_address, by_node_port):
        if frontend is not None:
            target = _target(frontend, client)
            if target.verdict == DNAT:
                return _translated(frontend, target, client, packet, local_addresses)
            if frontend.short_circuited:
                # Others are sent on by this row, so it stands before a NodePort of the same number.
                break
    for frontend in (by_node_port, by_address):
        verdict = _target(frontend, client).verdict if frontend is not None else DNAT
        if frontend is not None and verdict != DNAT:
            return _refused(frontend, verdict)
    if is_loopback(packet.destination):
        return _loopback(table, packet, family)
    # What arrives for an address of this node is its own business; what it sends itself is checked on the way out.
    if not packet.interface or packet.destination not in local_addresses:
        if any(row.kind == CLUSTER_IP for row in _rows_at(table, packet.destination)):
            return Outcome(REJECT, "the cluster IP has no such port")
        if any(prefix.contains(packet.destination) for prefix in rules.service_cidrs):
            return Outcome(DROP, "no Service has this address of the service range")
    return Outcome(PASS, "no Service has this address")


def classify(packet: Packet, rules: NodeRules, local_addresses: Collection[bytes]) -> str:
    """Return the kind of client a packet comes from: pod, node or outsider, asked in this order."""
    if rules.pods.recognises(packet.source, packet.interface):
        return POD
    return NODE if packet.source in local_addresses or is_loopback(packet.source) else OUTSIDER


def _source_checked(table: ServiceTable, packet: Packet, family: int) -> Frontend | None:
    row = table.frontends.get(FrontendKey(family, packet.destination, packet.protocol, packet.port))
    if row is None or row.source_ranges is None:
        return None
    return None if any(first <= packet.source <= last for first, last in row.source_ranges) else row


def accepts_node_ports(destination: bytes, rules: NodeRules, local_addresses: Collection[bytes]) -> bool:
    """Whether NodePorts are served on an address."""
    if destination not in local_addresses or is_loopback(destination):
        return False
    ranges = rules.node_port_ranges
    return ranges is None or any(prefix.contains(destination) for prefix in ranges)


def _target(frontend: Frontend, client: str) -> Target:
    return {POD: frontend.pods, NODE: frontend.node}.get(client, frontend.outsiders)


def _translated(
    frontend: Frontend, target: Target, client: str, packet: Packet, local_addresses: Collection[bytes]
) -> Outcome:
    endpoints = frontend.endpoints(target)
    masqueraded = frozenset(
        endpoint
        for endpoint in endpoints
        # What is delivered to this host never passes postrouting, so it is not masqueraded.
        if endpoint.ip not in local_addresses
        and (target.masquerade or (endpoint.local and endpoint.ip == packet.source))
    )
    reason = "%s %s of Service %s, for %s" % (frontend.kind, frontend.key, frontend.service_port, client)
    return Outcome(DNAT, reason, frontend, endpoints, masqueraded)


def _refused(frontend: Frontend, verdict: str) -> Outcome:
    if verdict == DROP:
        return Outcome(DROP, "Service %s has endpoints, but none on this node" % (frontend.service_port,), frontend)
    return Outcome(REJECT, "Service %s has no usable endpoint" % (frontend.service_port,), frontend)


def _loopback(table: ServiceTable, packet: Packet, family: int) -> Outcome:
    row = table.frontends.get(FrontendKey(family, b"", packet.protocol, packet.port))
    if row is None or row.kind != NODE_PORT or row.loopback == PASS:
        return Outcome(PASS, "loopback NodePorts are not served")
    if row.loopback == RELAY:
        endpoints = row.endpoints(row.outsiders) if row.outsiders.verdict == DNAT else ()
        return Outcome(RELAY, "the loopback relay of Service %s" % (row.service_port,), row, endpoints)
    return Outcome(REJECT, "the loopback relay does not serve this NodePort", row)


def _rows_at(table: ServiceTable, address: bytes) -> list[Frontend]:
    return [row for key, row in table.frontends.items() if key.ip == address]
