# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The objects that have been received, indexed the way planning needs them."""

from __future__ import annotations

from collections.abc import Iterable
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

    services: those to plan again. udp_families: families in which a slice with a UDP port changed.
    """

    services: set[ServiceKey]
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
        self._slices: dict[ServiceKey, dict[str, EndpointSlice]] = {}
        self._service_of_slice: dict[tuple[str, str], str] = {}

    def slices_of(self, key: ServiceKey) -> list[EndpointSlice]:
        """Return the slices of a Service in name order, so that the order of arrival does not matter."""
        found = self._slices.get(key)
        if not found:
            return []
        return list(found.values()) if len(found) == 1 else [found[name] for name in sorted(found)]

    def apply(self, changes: Iterable[Change]) -> Touched:
        """Take changes in order and return what they reach."""
        touched = Touched(set(), set(), False, False)
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
                touched.services.add(key)
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
                touched.services.add((namespace, name))
        elif kind == "ServiceCIDR" and self.service_cidrs.pop(name, None) is not None:
            return touched._replace(service_cidrs=True)
        # A deleted Node object changes nothing: the node still is what it was last seen to be
        # (pkg/proxy/node.go OnNodeDelete).
        return touched

    def _replace_slice(self, identity: tuple[str, str], piece: EndpointSlice | None, touched: Touched) -> None:
        namespace, name = identity
        known_service = self._service_of_slice.get(identity)
        known = self._slices[(namespace, known_service)].get(name) if known_service is not None else None
        # The trigger time says when a change happened, not what it is.
        if known is not None and piece is not None and known[:6] == piece[:6]:
            self._slices[(namespace, piece.service)][name] = piece
            return
        if known is not None and known_service is not None:
            of_service = self._slices[(namespace, known_service)]
            del of_service[name]
            del self._service_of_slice[identity]
            if not of_service:
                del self._slices[(namespace, known_service)]
            _touch(known, touched)
        if piece is not None:
            self._slices.setdefault((namespace, piece.service), {})[name] = piece
            self._service_of_slice[identity] = piece.service
            _touch(piece, touched)


def _touch(piece: EndpointSlice, touched: Touched) -> None:
    touched.services.add((piece.namespace, piece.service))
    if any(port.protocol == UDP for port in piece.ports):
        touched.udp_families.add(piece.family)
