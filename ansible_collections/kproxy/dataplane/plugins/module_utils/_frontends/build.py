# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From one Service and its slices to the rows of the service table. All that a Service means is decided here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    CLUSTER,
    CLUSTER_IP,
    DNAT,
    DROP,
    EXTERNAL_IP,
    LOAD_BALANCER,
    LOCAL,
    NODE_PORT,
    PASS,
    REJECT,
    RELAY,
    Frontend,
    FrontendKey,
    ServicePortName,
    Target,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import merge_ranges
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service, ServicePort
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint, EndpointSets
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.select import select


class _Targets(NamedTuple):
    """What happens to each kind of client, and which endpoint sets that takes."""

    outsiders: Target
    pods: Target
    node: Target
    uses_cluster: bool
    uses_local: bool


def _targets(outsiders: Target, pods: Target, node: Target) -> _Targets:
    used = (outsiders.endpoint_set, pods.endpoint_set, node.endpoint_set)
    return _Targets(outsiders, pods, node, CLUSTER in used, LOCAL in used)


_DROP = Target(DROP)
_CLUSTER_PLAIN = Target(DNAT, CLUSTER, False)
_CLUSTER_MASQUERADED = Target(DNAT, CLUSTER, True)
_LOCAL_PLAIN = Target(DNAT, LOCAL, False)
_LOCAL_MASQUERADED = Target(DNAT, LOCAL, True)

_NOBODY = _targets(Target(REJECT), Target(REJECT), Target(REJECT))
_ELSEWHERE = _targets(_DROP, _DROP, _DROP)
_EXTERNAL = _targets(_CLUSTER_MASQUERADED, _CLUSTER_MASQUERADED, _CLUSTER_MASQUERADED)
_EXTERNAL_LOCAL = _targets(_LOCAL_PLAIN, _CLUSTER_PLAIN, _CLUSTER_MASQUERADED)
_EXTERNAL_ELSEWHERE = _targets(_DROP, _CLUSTER_PLAIN, _CLUSTER_MASQUERADED)
# Cluster IPs by (Local policy, how masquerading is decided).
_EVERYBODY, _STRANGERS, _NEVER = "everybody", "strangers", "never"
_INTERNAL = {
    (False, _EVERYBODY): _EXTERNAL,
    (False, _STRANGERS): _targets(_CLUSTER_MASQUERADED, _CLUSTER_PLAIN, _CLUSTER_MASQUERADED),
    (False, _NEVER): _targets(_CLUSTER_PLAIN, _CLUSTER_PLAIN, _CLUSTER_PLAIN),
    (True, _EVERYBODY): _targets(_LOCAL_MASQUERADED, _LOCAL_MASQUERADED, _LOCAL_MASQUERADED),
    (True, _STRANGERS): _targets(_LOCAL_MASQUERADED, _LOCAL_PLAIN, _LOCAL_MASQUERADED),
    (True, _NEVER): _targets(_LOCAL_PLAIN, _LOCAL_PLAIN, _LOCAL_PLAIN),
}


class NodeView(NamedTuple):
    """What this node is, as far as the meaning of Services depends on it.

    detected: families in which pods can be told from others. primary_addresses: at most one per family.
    """

    config: ProxyConfig
    zone: str
    primary_addresses: tuple[bytes, ...]
    detected: frozenset[int]

    def internal_masquerade(self, family: int) -> str:
        """Return whose connections to cluster IPs of a family are masqueraded."""
        if self.config.masquerade_all:
            return _EVERYBODY
        return _STRANGERS if family in self.detected else _NEVER


class BuiltPort(NamedTuple):
    """One service port in one family.

    sets: what the policies may use. serving: addresses and ports of its serving endpoints, which UDP flows may keep
    using (UDP ports only). internal_local, external_local: the policies; the latter governs no row while none leads
    here from outside.
    """

    name: ServicePortName
    family: int
    sets: EndpointSets
    serving: frozenset[tuple[bytes, int]]
    internal_local: bool
    external_local: bool


class BuiltService(NamedTuple):
    """All that a Service puts into the table."""

    frontends: tuple[Frontend, ...]
    ports: tuple[BuiltPort, ...]


NOTHING = BuiltService((), ())
#: Makes a named tuple from a tuple. The constructor by fields takes three times as long, several times per Service.
_make = tuple.__new__


def build_service(service: Service, slices: Sequence[EndpointSlice], view: NodeView) -> BuiltService:
    """Return the rows of one Service on one node."""
    # Taken apart at once: a named tuple's field costs a call each time it is asked for by name.
    (
        namespace, service_name, proxied, cluster_ips, external_ips, load_balancer_ips, _source_ranges,
        internal_local, external_local, _affinity, _health_check, service_ports, _created, _labels, _notes,
    ) = service  # fmt: skip
    if not proxied:
        return NOTHING
    frontends: dict[FrontendKey, Frontend] = {}
    ports: list[BuiltPort] = []
    config, zone, _primary_addresses, _detected = view
    families, node_name = config.families, config.node_name
    if external_ips and not config.serves_external_ips:
        external_ips, service = (), service._replace(external_ips=())
    for cluster_ip in cluster_ips:
        family = 4 if len(cluster_ip) == 4 else 6
        if family not in families:
            continue
        masquerade = view.internal_masquerade(family)
        for port in service_ports:
            port_name, protocol, number, node_port = port
            name = _make(ServicePortName, (namespace, service_name, port_name, protocol))
            sets, serving = select(port, slices, family, node_name, zone)
            outside = bool(node_port or external_ips or load_balancer_ips)
            built = _make(BuiltPort, (name, family, sets, serving, internal_local, external_local))
            ports.append(built)
            key = _make(FrontendKey, (family, cluster_ip, protocol, number))
            targets = _internal_targets(sets, internal_local, masquerade)
            frontends[key] = cluster_ip_row = _row(service, built, key, CLUSTER_IP, targets)
            if outside:
                for row in _external_rows(service, port, len(cluster_ip), built, view):
                    frontends[row.key] = row
                # An address of the Service that is its cluster IP as well stays that.
                frontends[key] = cluster_ip_row
    return _make(BuiltService, (tuple(frontends.values()), tuple(ports)))


def _row(
    service: Service,
    built: BuiltPort,
    key: FrontendKey,
    kind: str,
    targets: _Targets,
    source_ranges: tuple[tuple[bytes, bytes], ...] | None = None,
    loopback: str = PASS,
) -> Frontend:
    outsiders, pods, node, uses_cluster, uses_local = targets
    name, _family, (cluster, local, _exists), _serving, _internal_local, _external_local = built
    here = bool(local)
    if not uses_cluster:
        cluster = ()
    if not uses_local:
        local = ()
    own = _node_endpoints(cluster, local) if here else ()
    affinity = service.affinity_seconds
    return _make(
        Frontend,
        (key, kind, name, cluster, local, own, outsiders, pods, node, source_ranges, affinity, loopback),
    )


def _external_rows(
    service: Service, port: ServicePort, width: int, built: BuiltPort, view: NodeView
) -> Iterator[Frontend]:
    """Yield the rows by which a service port can be reached from outside; width: bytes of an address of the family."""
    family, targets = built.family, _external_targets(built)
    for ip in service.external_ips:
        if len(ip) == width:
            key = FrontendKey(family, ip, port.protocol, port.port)
            yield _row(service, built, key, EXTERNAL_IP, targets)
    # A load-balancer address that is an external IP as well is the former: it is subject to the source ranges.
    ranges = _source_ranges(service, width, view)
    for ip in service.load_balancer_ips:
        if len(ip) == width:
            key = FrontendKey(family, ip, port.protocol, port.port)
            yield _row(service, built, key, LOAD_BALANCER, targets, ranges)
    if port.node_port:
        key = FrontendKey(family, b"", port.protocol, port.node_port)
        yield _row(service, built, key, NODE_PORT, targets, loopback=_loopback(built, view))


def _node_endpoints(cluster: tuple[Endpoint, ...], local: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return the endpoints of this node among those in use."""
    own = tuple([endpoint for endpoint in cluster if endpoint.local])
    if not local or own == local:
        return own
    return tuple(sorted({*own, *local}))


def _internal_targets(sets: EndpointSets, internal_local: bool, masquerade: str) -> _Targets:
    """Return the targets of a cluster IP."""
    cluster, local, exists = sets
    if not (local if internal_local else cluster):
        return _ELSEWHERE if internal_local and exists else _NOBODY
    return _INTERNAL[internal_local, masquerade]


def _external_targets(built: BuiltPort) -> _Targets:
    """Return the targets of external addresses and NodePorts."""
    if not built.sets.exists:
        return _NOBODY
    if not built.external_local:
        return _EXTERNAL
    return _EXTERNAL_LOCAL if built.sets.local else _EXTERNAL_ELSEWHERE


def _source_ranges(service: Service, width: int, view: NodeView) -> tuple[tuple[bytes, bytes], ...] | None:
    """Return who may dial the load-balancer addresses of one family; None for everybody.

    No entry of a family filters nothing in it, and a zero-length one voids its list. A list that admits the node's
    primary address admits the Service's own load-balancer addresses as sources, so that the node can reach them
    while it holds them (pkg/proxy/nftables/proxier.go).
    """
    prefixes = [prefix for prefix in service.source_ranges if len(prefix.network) == width]
    if not prefixes or any(prefix.length == 0 for prefix in prefixes):
        return None
    allowed = [(prefix.network, prefix.last) for prefix in prefixes]
    if any(prefix.contains(ip) for prefix in prefixes for ip in view.primary_addresses):
        allowed += [(ip, ip) for ip in service.load_balancer_ips if len(ip) == width]
    return merge_ranges(allowed)


def _loopback(built: BuiltPort, view: NodeView) -> str:
    """Return what the loopback address does for a NodePort (KEP-6032)."""
    # Beside kube-proxy the loopback address stays its own: it may be listening there.
    if not view.config.localhost_gate or view.config.canary is not None:
        return PASS
    if built.name.protocol != TCP or not view.config.serves_localhost(built.family):
        return REJECT
    usable = built.sets.local if built.external_local else built.sets.cluster
    return RELAY if usable else REJECT
