# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The objects that have been received, indexed the way planning needs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import EndpointSlice
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.node import Node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import ApiObject, Change, Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import UDP
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.servicecidr import ServiceCIDR

ServiceKey = tuple[str, str]


@dataclass
class Touched:
    """What a batch of changes reaches.

    services: those to plan again, in order of arrival: objects that came together lie together in memory.
    udp_families: families in which a slice with a UDP port changed. node, service_cidrs: these changed.
    """

    services: dict[ServiceKey, None] = field(default_factory=dict)
    udp_families: set[int] = field(default_factory=set)
    node: bool = False
    service_cidrs: bool = False


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
        touched = Touched()
        for change in changes:
            if isinstance(change, Upsert):
                self._upsert(change.obj, touched)
            else:
                self._delete(change.kind, change.namespace, change.name, touched)
        return touched

    def _upsert(self, obj: ApiObject, touched: Touched) -> None:
        if isinstance(obj, EndpointSlice):
            self._replace_slice((obj.namespace, obj.name), obj if obj.service else None, touched)
        elif isinstance(obj, Service):
            key = (obj.namespace, obj.name)
            known = self.services.get(key)
            if obj.proxied:
                if known is None or known != obj:
                    touched.services[key] = None
                self.services[key] = obj
            elif known is not None:
                touched.services[key] = None
                del self.services[key]
        elif isinstance(obj, Node):
            if obj.name == self._node_name and obj != self.node:
                self.node = obj
                touched.node = True
        elif self.service_cidrs.get(obj.name) != obj:
            self.service_cidrs[obj.name] = obj
            touched.service_cidrs = True

    def _delete(self, kind: str, namespace: str, name: str, touched: Touched) -> None:
        if kind == "EndpointSlice":
            self._replace_slice((namespace, name), None, touched)
        elif kind == "Service":
            if self.services.pop((namespace, name), None) is not None:
                touched.services[namespace, name] = None
        elif kind == "ServiceCIDR" and self.service_cidrs.pop(name, None) is not None:
            touched.service_cidrs = True
        # A deleted Node object changes nothing: the node still is what it was last seen to be
        # (pkg/proxy/node.go OnNodeDelete).

    def _replace_slice(self, identity: tuple[str, str], piece: EndpointSlice | None, touched: Touched) -> None:
        known = self._slice_by_name.get(identity)
        # The trigger time says when a change happened, not what it is. What is noted is told to people.
        changed = known is None or piece is None or known[:6] != piece[:6] or known.notes != piece.notes
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
        key = (identity[0], piece.service)
        others = self._slices.get(key)
        self._slices[key] = tuple(sorted((*others, piece), key=_NAME)) if others else (piece,)
        if changed:
            _touch(key, piece, touched)


_NAME = attrgetter("name")


def _touch(key: ServiceKey, piece: EndpointSlice, touched: Touched) -> None:
    touched.services[key] = None
    for _name, protocol, _port in piece.ports:
        if protocol == UDP:
            touched.udp_families.add(piece.family)
