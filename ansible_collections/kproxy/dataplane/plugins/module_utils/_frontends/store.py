# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The objects that have been received, indexed the way planning needs them."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.node import Node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import UDP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.servicecidr import ServiceCIDR

ServiceKey = tuple[str, str]


class Touched(NamedTuple):
    """What a batch of changes reaches.

    services: those to plan again, in order of arrival: objects that came together lie together in memory.
    udp_families: families in which a slice with a UDP port changed.
    """

    services: dict[ServiceKey, None]
    udp_families: set[int]
    node: bool
    service_cidrs: bool


class Store:
    """Services, their slices, this node and the service ranges. An unchanged object touches nothing."""

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        self.services: dict[ServiceKey, Service] = {}
        self.node: Node | None = None
        self.service_cidrs: dict[str, ServiceCIDR] = {}
        #: By Service, in name order, so that the order of arrival does not matter.
        self._slices: dict[ServiceKey, tuple[EndpointSlice, ...]] = {}
        self._slice_by_name: dict[tuple[str, str], EndpointSlice] = {}

    def slices_of(self, key: ServiceKey) -> tuple[EndpointSlice, ...]:
        """Return the slices of a Service in name order."""
        return self._slices.get(key, ())

    def endpoint_nodes(self) -> set[str]:
        """Return the names of all nodes that endpoints are on."""
        pieces = self._slice_by_name.values()
        return {endpoint.node_name for piece in pieces for endpoint in piece.endpoints if endpoint.node_name}

    def apply(self, changes: Iterable[Change]) -> Touched:
        """Take changes in order and return what they reach."""
        touched = Touched({}, set(), False, False)
        for change in changes:
            if isinstance(change, Upsert):
                touched = self._upsert(change, touched)
            else:
                touched = self._delete(change.kind, change.namespace, change.name, touched)
        return touched

    def _upsert(self, change: Upsert, touched: Touched) -> Touched:
        obj = change.obj
        if isinstance(obj, EndpointSlice):
            self._replace_slice((obj.namespace, obj.name), obj if obj.service else None, touched)
        elif isinstance(obj, Service):
            key = (obj.namespace, obj.name)
            known = self.services.get(key)
            if known != obj and (known is not None or obj.proxied):
                touched.services[key] = None
            if obj.proxied:
                self.services[key] = obj
            else:
                self.services.pop(key, None)
        elif isinstance(obj, Node):
            if obj.name == self._node_name and obj != self.node:
                self.node = obj
                return touched._replace(node=True)
        elif self.service_cidrs.get(obj.name) != obj:
            self.service_cidrs[obj.name] = obj
            return touched._replace(service_cidrs=True)
        return touched

    def _delete(self, kind: str, namespace: str, name: str, touched: Touched) -> Touched:
        if kind == "EndpointSlice":
            self._replace_slice((namespace, name), None, touched)
        elif kind == "Service":
            if self.services.pop((namespace, name), None) is not None:
                touched.services[namespace, name] = None
        elif kind == "ServiceCIDR" and self.service_cidrs.pop(name, None) is not None:
            return touched._replace(service_cidrs=True)
        # A deleted Node object changes nothing: the node still is what it was last seen to be
        # (pkg/proxy/node.go OnNodeDelete).
        return touched

    def _replace_slice(self, identity: tuple[str, str], piece: EndpointSlice | None, touched: Touched) -> None:
        known = self._slice_by_name.get(identity)
        # The trigger time says when a change happened, not what it is.
        changed = known is None or piece is None or known[:6] != piece[:6]
        if known is not None:
            key = (known.namespace, known.service)
            self._slices[key] = tuple([other for other in self._slices[key] if other is not known])
            if not self._slices[key]:
                del self._slices[key]
            if changed:
                _touch(key, known, touched)
        if piece is None:
            self._slice_by_name.pop(identity, None)
            return
        self._slice_by_name[identity] = piece
        key = (piece.namespace, piece.service)
        others = self._slices.get(key)
        self._slices[key] = tuple(sorted((*others, piece), key=_NAME)) if others else (piece,)
        if changed:
            _touch(key, piece, touched)


_NAME = attrgetter("name")


def _touch(key: ServiceKey, piece: EndpointSlice, touched: Touched) -> None:
    touched.services[key] = None
    for port in piece.ports:
        if port.protocol == UDP:
            touched.udp_families.add(piece.family)
