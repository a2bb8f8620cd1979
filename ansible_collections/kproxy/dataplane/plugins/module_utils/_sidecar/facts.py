# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From the service table to what probes, relays and metrics show; pure, and as incremental as the table itself."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    DNAT,
    NODE_PORT,
    PASS,
    Frontend,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.notes import notes_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.store import ServiceKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import is_loopback
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import TCP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import ServicePort
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.candidates import candidates
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import Facts
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.health_checks import ANY_ADDRESS, HealthCheck
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import Relay, RelayKey


class Contribution(NamedTuple):
    """What one Service adds to the facts."""

    health_checks: tuple[HealthCheck, ...]
    relays: tuple[tuple[RelayKey, Relay], ...]
    no_local: tuple[tuple[str, int], ...]
    frontends: tuple[int, ...]
    notes: tuple[str, ...]


class FactsTracker:
    """The sum of every Service's contribution; updating costs as much as the Services named."""

    def __init__(self, table: ServiceTable, most_endpoints: int = sys.maxsize) -> None:
        """Take the table to read; nothing is read before update().

        most_endpoints: how many the backend has room for in one endpoint set.
        """
        self._table = table
        self._most_endpoints = most_endpoints
        self._contributions: dict[ServiceKey, Contribution] = {}
        self._health_checks: dict[ServiceKey, tuple[HealthCheck, ...]] = {}
        self._relays: dict[ServiceKey, tuple[tuple[RelayKey, Relay], ...]] = {}
        self._no_local: Counter[tuple[str, int]] = Counter()
        self._frontends: Counter[int] = Counter()
        self._notes: dict[ServiceKey, tuple[str, ...]] = {}

    def update(self, services: Iterable[ServiceKey]) -> None:
        """Read these Services again."""
        for key in services:
            old = self._contributions.pop(key, None)
            if old is not None:
                self._no_local.subtract(old.no_local)
                self._frontends.subtract(old.frontends)
                self._health_checks.pop(key, None)
                self._relays.pop(key, None)
                self._notes.pop(key, None)
            if key in self._table.built:
                new = contribution(self._table, key, self._most_endpoints)
                self._contributions[key] = new
                self._no_local.update(new.no_local)
                self._frontends.update(new.frontends)
                if new.health_checks:
                    self._health_checks[key] = new.health_checks
                if new.relays:
                    self._relays[key] = new.relays
                if new.notes:
                    self._notes[key] = new.notes

    def update_all(self) -> None:
        """Read every Service again."""
        self.update({*self._contributions, *self._table.built})

    def facts(self, local_addresses: Iterable[bytes]) -> Facts:
        """Return the facts, given the addresses of this node's interfaces."""
        addresses = tuple(local_addresses)
        node = self._table.store.node
        return Facts(
            health_checks=tuple(check for checks in self._health_checks.values() for check in checks),
            node_port_addresses={family: node_port_addresses(self._table, family, addresses) for family in (4, 6)},
            relays={key: relay for relays in self._relays.values() for key, relay in relays},
            no_local_endpoints={
                (policy, family): self._no_local[(policy, family)]
                for policy in ("internal", "external")
                for family in (4, 6)
            },
            frontends={family: self._frontends[family] for family in (4, 6)},
            node_eligible=None if node is None else node.eligible,
            notes={"%s/%s" % key: notes for key, notes in self._notes.items()},
            conflicts=tuple([str(conflict) for conflict in self._table.conflicts]),
        )


def contribution(table: ServiceTable, key: ServiceKey, most_endpoints: int = sys.maxsize) -> Contribution:
    """Return what one Service in the table adds."""
    built = table.built[key]
    rows = table.frontends_of(key)
    no_local = [
        (policy, port.family)
        for port in built.ports
        for policy, governed in (("internal", port.internal_local), ("external", port.external_local))
        if governed and port.sets.exists and not port.sets.local
    ]
    return Contribution(
        tuple(_health_checks(table, key)),
        tuple(relay for row in rows for relay in _relays(table, row)),
        tuple(no_local),
        tuple(row.key.family for row in rows),
        tuple(notes_of(table, key, most_endpoints)),
    )


def node_port_addresses(table: ServiceTable, family: int, local: Iterable[bytes]) -> tuple[str, ...]:
    """Return the addresses of one family that accept NodePorts; ("",) is every address.

    A whole address (/32, /128) counts even before it is on an interface: opening it is tried until it works.
    """
    rules = table.rules.get(family)
    if rules is None:
        return ()
    if rules.node_port_ranges is None:
        return (ANY_ADDRESS,)
    found = {prefix.network for prefix in rules.node_port_ranges if prefix.length == len(prefix.network) * 8}
    found |= {
        address
        for address in local
        if len(address) == (4 if family == 4 else 16)
        and any(prefix.contains(address) for prefix in rules.node_port_ranges)
    }
    return tuple(_text(address) for address in sorted(found) if not is_loopback(address))


def local_ready_addresses(slices: Sequence[EndpointSlice], node_name: str) -> Mapping[int, set[bytes]]:
    """Return the distinct ready addresses of this node, per family; one pod behind two ports counts once.

    Source: pkg/proxy/endpointschangetracker.go LocalReadyEndpoints.
    """
    found: dict[int, set[bytes]] = {4: set(), 6: set()}
    for family, name, protocol in {
        (piece.family, port.name, port.protocol) for piece in slices for port in piece.ports
    }:
        offered = candidates(ServicePort(name, protocol, 0, 0), slices, family)
        found[family].update(
            endpoint.ip for endpoint in offered.values() if endpoint.ready and endpoint.node_name == node_name
        )
    return found


def _health_checks(table: ServiceTable, key: ServiceKey) -> Iterable[HealthCheck]:
    service = table.store.services[key]
    # A kube-proxy that still runs here has opened the health check ports of all Services, and answers the same.
    if not service.health_check_node_port or table.config.canary is not None:
        return
    ready = local_ready_addresses(table.store.slices_of(key), table.config.node_name)
    for family in sorted({4 if len(ip) == 4 else 6 for ip in service.cluster_ips} & set(table.config.families)):
        yield HealthCheck(*key, family, service.health_check_node_port, len(ready[family]))


def _relays(table: ServiceTable, row: Frontend) -> Iterable[tuple[RelayKey, Relay]]:
    if row.kind != NODE_PORT or row.loopback == PASS or row.key.protocol != TCP:
        return
    if not table.config.serves_localhost(row.key.family):
        return
    # What outsiders would get: a Local policy restricts the relay although the node itself is short-circuited.
    endpoints = row.endpoints(row.outsiders) if row.outsiders.verdict == DNAT else ()
    yield (
        RelayKey(row.key.family, row.key.port),
        Relay(
            str(row.service_port),
            tuple((_text(endpoint.ip), endpoint.port) for endpoint in endpoints),
            row.affinity_seconds,
        ),
    )


def _text(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
