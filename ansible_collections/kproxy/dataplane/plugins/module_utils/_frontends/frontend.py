# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The rows of the service table."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_socket_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint

CLUSTER_IP = "cluster-ip"
EXTERNAL_IP = "external-ip"
LOAD_BALANCER = "load-balancer"
NODE_PORT = "node-port"

DNAT = "dnat"
REJECT = "reject"
DROP = "drop"

CLUSTER = "cluster"
LOCAL = "local"

PASS = "pass"
RELAY = "relay"


class ServicePortName(NamedTuple):
    """A port of a Service, the unit that endpoints and session affinity belong to."""

    namespace: str
    name: str
    port: str
    protocol: int

    def __str__(self) -> str:
        protocol = NAMES[self.protocol]
        port = ":%s" % self.port if self.port else ""
        return "%s/%s%s/%s" % (self.namespace, self.name, port, protocol)


class FrontendKey(NamedTuple):
    """An address a client can dial. ip is empty for a NodePort: any address of the node that accepts them."""

    family: int
    ip: bytes
    protocol: int
    port: int

    def __str__(self) -> str:
        where = format_socket_address(self.ip, self.port) if self.ip else "node:%d (IPv%d)" % (self.port, self.family)
        return "%s/%s" % (where, NAMES[self.protocol])


class Target(NamedTuple):
    """What happens to a new connection of one kind of client.

    verdict: dnat, reject (an immediate error) or drop (silence). endpoint_set: cluster or local, for dnat.
    masquerade: the endpoint sees an address of this node; for dnat.
    """

    verdict: str
    endpoint_set: str = ""
    masquerade: bool = False


class Frontend(NamedTuple):
    """One row of the service table.

    cluster_endpoints and local_endpoints are filled only where a target uses them. Clients are told apart in this
    order: pods (as the local-detect mode recognises them), the node itself (its own addresses), outsiders.
    node_endpoints: endpoints of this node that some client can reach by this frontend; a connection that comes back
    to its own sender must be masqueraded (hairpin).
    source_ranges: inclusive (first, last) pairs of sources that may dial, None for everybody; checked before all
    else, for every kind of client.
    affinity_seconds: how long a client stays on its endpoint, 0 for not at all.
    loopback: what 127.0.0.1:port or [::1]:port do for a NodePort: pass, relay or reject (KEP-6032).
    """

    key: FrontendKey
    kind: str
    service_port: ServicePortName
    cluster_endpoints: tuple[Endpoint, ...]
    local_endpoints: tuple[Endpoint, ...]
    node_endpoints: tuple[Endpoint, ...]
    outsiders: Target
    pods: Target
    node: Target
    source_ranges: tuple[tuple[bytes, bytes], ...] | None
    affinity_seconds: int
    loopback: str

    def endpoints(self, target: Target) -> tuple[Endpoint, ...]:
        """Return the endpoint set of one of this row's targets."""
        return self.local_endpoints if target.endpoint_set == LOCAL else self.cluster_endpoints

    @property
    def short_circuited(self) -> bool:
        """Pods and the node are treated other than outsiders: they skip the Local policy."""
        if self.kind == CLUSTER_IP:
            return False
        return (
            self.outsiders.verdict != self.pods.verdict
            or self.outsiders.endpoint_set != self.pods.endpoint_set
            or (self.outsiders.verdict != self.node.verdict or self.outsiders.endpoint_set != self.node.endpoint_set)
        )
