# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Why a packet comes to the end that simulate() says: the questions that were asked on its way, one sentence each."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.client import NODE, OUTSIDER, POD
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    CLUSTER_IP,
    DNAT,
    LOCAL,
    NODE_PORT,
    Frontend,
    FrontendKey,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import (
    Outcome,
    Packet,
    accepts_node_ports,
    classify,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import NodeRules, ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import family_of, format_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import ServicePort
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.candidates import candidates

_WHO = {POD: "a pod", NODE: "this node itself", OUTSIDER: "an outsider"}


def explain(table: ServiceTable, packet: Packet, outcome: Outcome, local_addresses: Collection[bytes]) -> list[str]:
    """Return the way to an outcome of simulate() for the same table, packet and addresses."""
    family = family_of(packet.destination)
    rules = table.rules.get(family)
    if rules is None:
        return ["IPv%d is not among this node's families" % family]
    client = classify(packet, rules, local_addresses)
    return [_client(packet, rules, client), *_way(table, packet, outcome, local_addresses, rules, client)]


def _client(packet: Packet, rules: NodeRules, client: str) -> str:
    who = "the client %s is %s" % (format_address(packet.source), _WHO[client])
    pods = rules.pods
    if client == POD and pods.source_ranges:
        return "%s: its address is in %s" % (who, ", ".join(map(str, pods.source_ranges)))
    if client == POD:
        return "%s: it enters by %s" % (who, packet.interface)
    if client == NODE:
        return "%s: the address is one of its own" % who
    if not pods.works:
        return "%s as far as can be told: nothing says how pods of IPv%d are recognised" % (
            who, family_of(packet.source),
        )  # fmt: skip
    ours = ", ".join(map(str, pods.source_ranges)) or pods.interface or pods.interface_prefix + "*"
    return "%s: pods are recognised by %s" % (who, ours)


def _way(
    table: ServiceTable,
    packet: Packet,
    outcome: Outcome,
    local_addresses: Collection[bytes],
    rules: NodeRules,
    client: str,
) -> Iterator[str]:
    family = family_of(packet.destination)
    by_address = table.frontends.get(FrontendKey(family, packet.destination, packet.protocol, packet.port))
    if by_address is not None and by_address.source_ranges is not None:
        admitted = any(first <= packet.source <= last for first, last in by_address.source_ranges)
        yield "loadBalancerSourceRanges of %s %s" % (by_address.service_port, "admit it" if admitted else "shut it out")
        if not admitted:
            return
    by_node_port = table.frontends.get(FrontendKey(family, b"", packet.protocol, packet.port))
    if by_node_port is not None and packet.destination in local_addresses:
        served = accepts_node_ports(packet.destination, rules, local_addresses)
        yield "%d is a NodePort, which %s" % (
            packet.port,
            "this address accepts" if served else "this address does not accept (nodePortAddresses)",
        )
    row = outcome.frontend
    if row is None:
        here = sorted(key for key in table.frontends if key.ip == packet.destination)
        if here:
            yield "what Services have at %s: %s" % (
                format_address(packet.destination),
                ", ".join("%s of %s" % (key, table.frontends[key].service_port) for key in here),
            )
        return
    if by_address is not None and row is not by_address:
        yield "the frontend %s has no endpoint for this client, so the NodePort answers" % (by_address.key,)
    yield from _policy(row, client)
    yield from _endpoints(table, row)
    if outcome.verdict == DNAT:
        yield from _after(row, outcome, client)


def _policy(row: Frontend, client: str) -> Iterator[str]:
    targets = {POD: row.pods, NODE: row.node}
    target = targets.get(client, row.outsiders)
    if row.kind == CLUSTER_IP:
        if target.endpoint_set == LOCAL:
            yield "internalTrafficPolicy Local: only endpoints of this node count"
    elif row.short_circuited:
        yield (
            "externalTrafficPolicy Local: only endpoints of this node count for outsiders"
            if client == OUTSIDER
            else "externalTrafficPolicy Local is for outsiders: pods and the node reach every endpoint"
        )


def _endpoints(table: ServiceTable, row: Frontend) -> Iterator[str]:
    namespace, name, port, protocol = row.service_port
    slices = [piece for piece in table.store.slices_of((namespace, name)) if piece.family == row.key.family]
    found = candidates(ServicePort(port, protocol, row.key.port, 0), slices, row.key.family).values()
    ready = [entry for entry in found if entry.ready]
    draining = [entry for entry in found if not entry.ready and entry.serving and entry.terminating]
    here = sum(entry.node_name == table.config.node_name for entry in found)
    yield "endpoints in %d slices: %d, of which %d ready, %d draining, %d on this node" % (
        len(slices), len(found), len(ready), len(draining), here,
    )  # fmt: skip
    if ready and any(entry.zone_hints or entry.node_hints for entry in ready) and row.cluster_endpoints:
        if len(row.cluster_endpoints) < len(ready):
            yield "topology hints leave %d of the ready ones (zone %r)" % (len(row.cluster_endpoints), table.view.zone)
        else:
            yield "topology hints are not followed: not every ready endpoint has one, or none is for us"


def _after(row: Frontend, outcome: Outcome, client: str) -> Iterator[str]:
    if row.affinity_seconds:
        yield "sessionAffinity: a client that came within %d s stays on its endpoint" % row.affinity_seconds
    if not outcome.masqueraded:
        yield "the endpoint sees the client's own address"
        return
    target = {POD: row.pods, NODE: row.node}.get(client, row.outsiders)
    if not target.masquerade:
        yield "masqueraded where the endpoint is the client itself, so that the answer comes back this way"
    elif row.kind in (CLUSTER_IP, NODE_PORT) and client != POD:
        yield "masqueraded, so that the answer comes back this way"
    else:
        yield "masqueraded: the endpoint may be on another node"
