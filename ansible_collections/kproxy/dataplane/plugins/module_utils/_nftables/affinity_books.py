# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Who owns session affinity objects, and what becomes of them as endpoints and settings change. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import Frontend, ServicePortName
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import affinity, names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.declaration import delete_text, ensure_text
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import endpoint_value
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import Mirror
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import CarriedPins, Pins, Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import SetName

#: A service port in one family.
PortKey = tuple[int, ServicePortName]


class Owned(NamedTuple):
    """The objects that one service port owns in one family; cluster and local: the endpoint sets in use."""

    suffix: str
    protocol: int
    seconds: int
    cluster: bool
    local: bool


class AffinityBooks:
    """The owners, over the mirror and the chains that the planner keeps."""

    def __init__(self, table: str, mirror: Mirror, chains: dict[int, set[str]]) -> None:
        self._table = table
        self._mirror = mirror
        self._chains = chains
        self._owners: dict[PortKey, Owned] = {}

    def objects(self, family: int) -> list[affinity.AffinityObjects]:
        """Return what is owned in a family, in a stable order."""
        return [_objects(key, self._owners[key]) for key in sorted(key for key in self._owners if key[0] == family)]

    def all_pins(self) -> list[Pins]:
        """Return the pins of every owner."""
        return [pins for key, owned in self._owners.items() for pins in _pins_in_use(key[0], owned)]

    def adopt(self, table: ServiceTable, plan: Plan) -> None:
        """Note the owners and plan their members; whether their objects are there is seen with the whole structure."""
        rows: Iterable[Frontend] = table.frontends.values()
        for key in sorted({(row.key.family, row.service_port) for row in rows if row.affinity_seconds}):
            cluster, local, seconds = _wanted(table, key)
            if cluster or local:
                self._owners[key] = _owned(key, cluster, local, seconds)
                self._carry_pins(key, cluster, local, plan)
                self._put_members(key, cluster, local, plan)

    def plan(self, table: ServiceTable, ports: Iterable[PortKey], plan: Plan) -> None:
        """Make the objects of service ports, fill their members, retire what is no longer used."""
        for key in sorted(ports):
            cluster, local, seconds = _wanted(table, key)
            known = self._owners.pop(key, None)
            wanted = _owned(key, cluster, local, seconds) if cluster or local else None
            if wanted is not None:
                self._owners[key] = wanted
                self._carry_pins(key, cluster, local, plan)
                if wanted != known:
                    self._make(key, wanted, plan)
            if known is not None and wanted != known:
                self._retire(key, known, wanted, plan)
            if wanted is not None:
                self._put_members(key, cluster, local, plan)

    def _make(self, key: PortKey, owned: Owned, plan: Plan) -> None:
        family, made = key[0], _objects(key, owned)
        plan.transaction.structure += ensure_text(self._table, family, made.sets, made.chains, {})
        plan.restructured.add(family)
        self._chains[family].update(item.name for item in made.chains)

    def _carry_pins(self, key: PortKey, cluster: set[bytes], local: set[bytes], plan: Plan) -> None:
        """Have pins count for an endpoint set that their endpoint comes into, if it was in the other one.

        A pin belongs to the service port, and holds while its endpoint can be reached under either policy.
        """
        suffix = self._owners[key].suffix
        for is_local, members in ((False, cluster), (True, local)):
            source, target = _pins(key[0], suffix, not is_local), _pins(key[0], suffix, is_local)
            coming = members.difference(self._mirror.elements.get(target.members, ()))
            carried = coming.intersection(self._mirror.elements.get(source.members, ()))
            if carried:
                plan.carried.append(CarriedPins(source, target, frozenset(carried)))

    def _put_members(self, key: PortKey, cluster: set[bytes], local: set[bytes], plan: Plan) -> None:
        family, owned = key[0], self._owners[key]
        for is_local, members in ((False, cluster), (True, local)):
            if not members:
                continue
            set_name = SetName(family, affinity.members_set(owned.suffix, is_local))
            held = self._mirror.of(set_name)
            gone = [member for member in held if member not in members]
            if gone:
                plan.transaction.deletes.setdefault(set_name, []).extend(gone)
                plan.pins.append(_pins(family, owned.suffix, is_local))
            for member in sorted(members):
                if member not in held:
                    plan.transaction.add(set_name, member)

    def _retire(self, key: PortKey, known: Owned, wanted: Owned | None, plan: Plan) -> None:
        family, old = key[0], _objects(key, known)
        kept = {item.name for item in _objects(key, wanted).everything} if wanted is not None else set()
        chains = [item.name for item in old.chains if item.name not in kept]
        declared = [item.name for item in old.sets if item.name not in kept]
        plan.retired += delete_text(self._table, family, chains, declared)
        plan.restructured.add(family)
        self._chains[family].difference_update(chains)
        for name in declared:
            self._mirror.elements.pop(SetName(family, name), None)


def _wanted(table: ServiceTable, key: PortKey) -> tuple[set[bytes], set[bytes], int]:
    """Return the endpoints of a service port under either policy, and how long its pins last."""
    family, name = key
    rows = [
        row
        for row in table.frontends_of((name.namespace, name.name))
        if row.service_port == name and row.key.family == family and row.affinity_seconds
    ]
    cluster = {endpoint_value(endpoint) for row in rows for endpoint in row.cluster_endpoints}
    local = {endpoint_value(endpoint) for row in rows for endpoint in row.local_endpoints}
    return cluster, local, rows[0].affinity_seconds if rows else 0


def _owned(key: PortKey, cluster: set[bytes], local: set[bytes], seconds: int) -> Owned:
    return Owned(names.affinity_id(key[1]), key[1].protocol, seconds, bool(cluster), bool(local))


def _objects(key: PortKey, owned: Owned) -> affinity.AffinityObjects:
    return affinity.affinity_objects(key[0], owned.suffix, owned.protocol, owned.seconds, owned.cluster, owned.local)


def _pins_in_use(family: int, owned: Owned) -> list[Pins]:
    return [
        _pins(family, owned.suffix, is_local)
        for is_local, used in ((False, owned.cluster), (True, owned.local))
        if used
    ]


def _pins(family: int, suffix: str, is_local: bool) -> Pins:
    maps = [SetName(family, affinity.pins_map(suffix, is_local))]
    if family == 6:
        maps.append(SetName(family, affinity.pin_ports_map(suffix, is_local)))
    return Pins(tuple(maps), SetName(family, affinity.members_set(suffix, is_local)))
