# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""UDP endpoints that leave: whatever still leads to them is ended, TCP ends by itself.

Two steps, because only the plan tells who leaves, and only after its commit does nothing new lead there.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flows, layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import Books, Replan
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.entries import PortKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.removed_endpoints import close_sockets
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane

_FAMILIES = (4, 6)
_UDP = 17

#: (service number, endpoint structure)
Departure = tuple[int, bytes]


def departing(books: Books, replan: Replan) -> set[Departure]:
    """Return the UDP endpoints that a plan takes away; ask before the books accept it."""
    gone: set[Departure] = set()
    for key, new in replan.ports.items():
        old = books.ports.get(key)
        if old is not None and key[0].protocol == _UDP:
            after = {held[:-2] for slots in (new.sets if new else {}).values() for held in slots}
            gone |= {(old.service, held) for slots in old.sets.values() for held in slots if held[:-2] not in after}
    return gone


def end(
    plane: Dataplane, books: Books, table: ServiceTable, gone: Iterable[Departure], ports: Iterable[PortKey]
) -> int:
    """End flows and close sockets that lead to endpoints which have gone and serve no more; return the sockets closed.

    ports: those that the plan touched. An endpoint that is draining still serves.
    """
    dead = {(number, *layout.unpack_endpoint(held)[:2]) for number, held in gone} - _serving(books, table, ports)
    if not dead:
        return 0
    for family in _FAMILIES:
        name = "flows%d" % family
        entries = plane.read((name,))[name]
        plane.maps[name].delete(
            [
                key
                for key, value in entries.items()
                if (flow := flows.unpack_flow(key, value)).protocol == _UDP
                and (flow.service, *flow.endpoint) in dead
            ]
        )
    return close_sockets(plane, dead)


def _serving(books: Books, table: ServiceTable, ports: Iterable[PortKey]) -> set[tuple[int, bytes, int]]:
    still: set[tuple[int, bytes, int]] = set()
    for service_port in {key[0] for key in ports}:
        built = table.built.get((service_port.namespace, service_port.name))
        for part in built.ports if built is not None else ():
            if part.name == service_port and books.numbers.known(service_port):
                number = books.numbers.of(service_port)
                still |= {(number, ip, port) for ip, port in part.serving}
    return still
