# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The service table: the rows in force on this node, kept in step with the objects one change at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.build import (
    NOTHING,
    BuiltService,
    NodeView,
    build_service,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.client import PodDetection, pod_detection
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    CLUSTER_IP,
    Frontend,
    FrontendKey,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.store import ServiceKey, Store
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import Prefix
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change


class NodeRules(NamedTuple):
    """What holds for a whole family on this node, whatever the Services.

    pods: how pods are recognised. node_port_ranges: where NodePorts are accepted, None for every local address but
    loopback. service_cidrs: ranges whose unused addresses are dropped. guarded: ports of cluster IPs that no Service
    has are refused by who renders these rules.
    """

    pods: PodDetection
    node_port_ranges: tuple[Prefix, ...] | None
    service_cidrs: tuple[Prefix, ...]
    masquerade_all: bool
    masquerade_mark: int
    guarded: bool = True


class Conflict(NamedTuple):
    """Two Services claim one frontend; loser's claim waits until winner's goes."""

    key: FrontendKey
    winner: ServiceKey
    loser: ServiceKey

    def __str__(self) -> str:
        return "Service %s/%s: %s already belongs to the older Service %s/%s" % (*self.loser, self.key, *self.winner)


class TableDelta(NamedTuple):
    """What a batch of changes did to the table. before holds the rows as they were, None for new ones."""

    before: dict[FrontendKey, Frontend | None]
    rules_changed: bool
    udp_families: frozenset[int]
    services: frozenset[ServiceKey]

    @property
    def empty(self) -> bool:
        return not self.before and not self.rules_changed


class ServiceTable:
    """Rows by frontend key. Planning a change costs as much as the services it touches.

    With a canary the rows of Services that are not chosen are planned as well, for their claims: an address that
    one of them has the better claim to is not ours. They are not in `frontends`, nor in `built`.
    """

    def __init__(self, config: ProxyConfig) -> None:
        self.config = config
        self.store = Store(config.node_name)
        self.frontends: dict[FrontendKey, Frontend] = {}
        self.built: dict[ServiceKey, BuiltService] = {}
        self._others: dict[ServiceKey, BuiltService] = {}
        self._claims: dict[FrontendKey, dict[ServiceKey, Frontend]] = {}
        self.view = self._view()
        self.rules: dict[int, NodeRules] = self._rules()

    def apply(self, changes: Iterable[Change]) -> TableDelta:
        """Take changes and return what became of the rows."""
        touched = self.store.apply(changes)
        services: Iterable[ServiceKey] = touched.services
        rules_changed = False
        if touched.node or touched.service_cidrs:
            rules, view = self._rules(), self._view()
            rules_changed = rules != self.rules
            if view != self.view:
                services = dict.fromkeys([*self.built, *self._others, *touched.services])
            self.rules, self.view = rules, view
        before: dict[FrontendKey, Frontend | None] = {}
        for key in services:
            self._replan(key, before)
        unchanged = [key for key, row in before.items() if self.frontends.get(key) == row]
        for frontend_key in unchanged:
            del before[frontend_key]
        return TableDelta(before, rules_changed, frozenset(touched.udp_families), frozenset(services))

    @property
    def conflicts(self) -> list[Conflict]:
        """Claims that wait behind another Service's, in a stable order."""
        found = []
        for key, claims in self._claims.items():
            winner = self._winner(claims)
            found += [
                Conflict(key, winner, loser)
                for loser in claims
                if loser != winner and not (loser in self._others and winner in self._others)
            ]
        return sorted(found)

    def leave_out(self, service: ServiceKey) -> None:
        """Take a Service's rows out of the table until its objects change."""
        before: dict[FrontendKey, Frontend | None] = {}
        for row in self.built.pop(service, NOTHING).frontends:
            self._release(row.key, service, before)

    def frontends_of(self, service: ServiceKey) -> list[Frontend]:
        """Return the rows in force of one Service."""
        return [
            row
            for claimed in self.built.get(service, NOTHING).frontends
            for row in (self.frontends.get(claimed.key),)
            if row is not None and row.service_port[:2] == service
        ]

    def _replan(self, service: ServiceKey, before: dict[FrontendKey, Frontend | None]) -> None:
        known = self.built.pop(service, None)
        if known is None:
            known = self._others.pop(service, NOTHING) if self._others else NOTHING
        obj = self.store.services.get(service)
        built = build_service(obj, self.store.slices_of(service), self.view) if obj is not None else NOTHING
        rows, ports = built
        if obj is not None and (rows or ports):
            canary = self.config.canary
            (self.built if canary is None or canary.chooses(obj) else self._others)[service] = built
        if known.frontends:
            wanted = {row.key for row in rows}
            for row in known.frontends:
                if row.key not in wanted:
                    self._release(row.key, service, before)
        for row in rows:
            self._claim(row, service, before)

    def _claim(self, row: Frontend, service: ServiceKey, before: dict[FrontendKey, Frontend | None]) -> None:
        key = row.key
        claims = self._claims.get(key) if self._claims else None
        holder = self.frontends.get(key)
        if claims is None:
            if (holder is None or holder.service_port[:2] == service) and (
                not self._others or service not in self._others
            ):
                before.setdefault(key, holder)
                self.frontends[key] = row
                return
            claims = self._claims[key] = {} if holder is None else {holder.service_port[:2]: holder}
        claims[service] = row
        self._settle(key, claims, before)

    def _release(self, key: FrontendKey, service: ServiceKey, before: dict[FrontendKey, Frontend | None]) -> None:
        claims = self._claims.get(key)
        if claims is None:
            before.setdefault(key, self.frontends.pop(key))
            return
        del claims[service]
        self._settle(key, claims, before)

    def _settle(
        self,
        key: FrontendKey,
        claims: dict[ServiceKey, Frontend],
        before: dict[FrontendKey, Frontend | None],
    ) -> None:
        """Put the row whose claim holds in force; nobody's where it is none of ours."""
        winner = self._winner(claims) if claims else None
        row = None if winner is None or winner in self._others else claims[winner]
        if not claims or (len(claims) == 1 and row is not None):
            del self._claims[key]
        holder = self.frontends.get(key)
        if row is holder:
            return
        before.setdefault(key, holder)
        if row is None:
            del self.frontends[key]
        else:
            self.frontends[key] = row

    def _winner(self, claims: dict[ServiceKey, Frontend]) -> ServiceKey:
        """Return whose claim holds: a cluster IP before other kinds, then the older Service, then by name.

        Nobody's external IP takes over a cluster IP (CVE-2020-8554), and every node decides alike.
        """
        return min(claims, key=lambda service: (claims[service].kind != CLUSTER_IP, self._age(service), service))

    def _age(self, service: ServiceKey) -> tuple[bool, str]:
        obj = self.store.services.get(service)
        created = obj.created if obj is not None else ""
        return not created, created

    def _view(self) -> NodeView:
        node = self.store.node
        pod_cidrs = self._pod_cidrs()
        return NodeView(
            self.config,
            node.zone if node is not None else self.config.zone,
            self.config.primary_addresses(node.addresses if node is not None else ()),
            frozenset(family for family in self.config.families if pod_detection(self.config, family, pod_cidrs).works),
        )

    def _pod_cidrs(self) -> tuple[Prefix, ...]:
        node = self.store.node
        return node.pod_cidrs if node is not None and node.pod_cidrs else self.config.pod_cidrs

    def _rules(self) -> dict[int, NodeRules]:
        node = self.store.node
        cidrs = {prefix for obj in self.store.service_cidrs.values() for prefix in obj.cidrs}
        return {
            family: NodeRules(
                pod_detection(self.config, family, self._pod_cidrs()),
                self.config.node_port_ranges(family, node.addresses if node is not None else ()),
                # What is unused here may be kube-proxy's: only who has all the Services may drop the rest of a range.
                tuple(sorted(prefix for prefix in cidrs if prefix.family == family and self.config.canary is None)),
                self.config.masquerade_all,
                self.config.masquerade_mark,
            )
            for family in self.config.families
        }
