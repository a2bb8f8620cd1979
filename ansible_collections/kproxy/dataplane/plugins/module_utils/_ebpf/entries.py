# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From rows of the service table to map entries. One service port in one family is the unit.

TCP and UDP are carried here. SCTP is not: its CRC32c covers the port, and a program has no means to renew it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    CLUSTER_IP,
    DNAT,
    LOCAL,
    REJECT,
    Frontend,
    ServicePortName,
    Target,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint

CARRIED_PROTOCOLS = (6, 17)
PRESENT = b"\1\0\0\0"

#: What entries belong to: numbers are given per service port, maps are per family.
PortKey = tuple[ServicePortName, int]


class PortEntries(NamedTuple):
    """All that one service port puts into the maps of one family.

    sets: endpoint structures by set number; the position is the slot. cluster_ips: addresses it makes active.
    balanced: the sets that have a Maglev table. affinity: clients are pinned to endpoints.
    """

    service: int
    frontends: dict[bytes, bytes]
    sets: dict[int, tuple[bytes, ...]]
    members: dict[bytes, bytes]
    ranges: tuple[bytes, ...]
    cluster_ips: tuple[bytes, ...]
    balanced: tuple[int, ...] = ()
    affinity: bool = False

    def pins_to(self, endpoint: bytes) -> bool:
        """Whether a pin to an endpoint, packed without its flags, still counts for any frontend."""
        return self.affinity and any(
            layout.member_key(layout.set_number(self.service, local_only), endpoint) in self.members
            for local_only in (False, True)
        )


def carried(row: Frontend) -> bool:
    """Whether the eBPF path serves this row; the others are left to the node's nftables tables."""
    return row.key.protocol in CARRIED_PROTOCOLS


def answer(target: Target) -> int:
    """Return the answer byte for one kind of client."""
    if target.verdict != DNAT:
        return layout.REJECT if target.verdict == REJECT else layout.DROP
    return (layout.LOCAL_ONLY if target.endpoint_set == LOCAL else 0) | (layout.MASQUERADE if target.masquerade else 0)


def arrange(current: Sequence[bytes], wanted: Iterable[bytes]) -> tuple[bytes, ...]:
    """Give slots to `wanted` so that as few slots as possible differ from `current`.

    Whoever stays keeps its slot; new ones fill the holes; what holes are left take the last ones.
    """
    missing = dict.fromkeys(wanted)
    if not current:
        return tuple(missing)
    slots: list[bytes] = []
    holes: list[int] = []
    for held in current:
        if held in missing:
            del missing[held]
        else:
            holes.append(len(slots))
        slots.append(held)
    fresh = list(missing)
    filled = min(len(fresh), len(holes))
    for hole, held in zip(holes, fresh):
        slots[hole] = held
    slots.extend(fresh[filled:])
    open_holes = set(holes[filled:])
    for hole in sorted(open_holes):
        while slots and len(slots) - 1 in open_holes:
            open_holes.discard(len(slots) - 1)
            slots.pop()
        if hole < len(slots):
            slots[hole] = slots.pop()
            open_holes.discard(hole)
    return tuple(slots)


def port_entries(
    rows: Sequence[Frontend], service: int, current: dict[int, tuple[bytes, ...]], table_size: int = 0
) -> PortEntries:
    """Return the entries of all rows of one service port in one family.

    Args:
        rows: at least one row; all of one service port and family.
        service: the number of the service port.
        current: what the two sets hold now, so that slots stay where they are.
        table_size: entries of a Maglev table, 0 for random choice everywhere.
    """
    frontends: dict[bytes, bytes] = {}
    cluster: tuple[Endpoint, ...] = ()
    local: tuple[Endpoint, ...] = ()
    ranges: tuple[bytes, ...] = ()
    for row in rows:
        cluster, local = cluster or row.cluster_endpoints, local or row.local_endpoints
    sets: dict[int, tuple[bytes, ...]] = {}
    for local_only, endpoints in ((False, cluster), (True, local)):
        if endpoints:
            number = layout.set_number(service, local_only)
            sets[number] = arrange(current.get(number, ()), map(pack_endpoint, endpoints))
    all_slots = sets.get(layout.set_number(service, False), ())
    only = all_slots[0] if len(all_slots) == 1 else b""
    balanced = _balanced(rows, service, sets, table_size) if table_size else ()
    seconds = rows[0].affinity_seconds
    served = carried(rows[0])  # by protocol, which a service port has one of
    for row in rows:
        if not served:
            # Only its existence matters: the packet path refuses ports of a cluster IP that no frontend has.
            value = layout.FrontendValue(service, 0, 0, 0, (layout.ELSEWHERE,) * 3, 0)
            frontends[layout.frontend_key(*row.key)] = value.pack(row.key.family)
            continue
        flags = layout.FRONTEND_AFFINITY if seconds else 0
        if row.loopback == REJECT:
            flags |= layout.FRONTEND_REFUSE_LOOPBACK
        if balanced and outside(row):
            flags |= layout.FRONTEND_MAGLEV
        if row.source_ranges is not None:
            flags |= layout.FRONTEND_RANGES
            ranges = tuple(layout.range_key(service, *prefix) for prefix in layout.prefixes_of(row.source_ranges))
        answers = _answers(row.outsiders, row.pods, row.node)
        value = layout.FrontendValue(service, len(cluster), len(local), seconds, answers, flags, only)
        frontends[layout.frontend_key(*row.key)] = value.pack(row.key.family)
    if not served:
        sets, balanced = {}, ()
    # By the cluster set, another node's packet proves that it was meant for an endpoint here (direct server return).
    proving = layout.set_number(service, False) if any(map(outside, rows)) else None
    members = {
        layout.member_key(number, held): flags.to_bytes(4, "little")
        for number, slots in (sets.items() if seconds or proving is not None else ())
        for held in slots
        for flags in layout.unpack_endpoint(held)[2:]
        if seconds or (number == proving and flags & layout.ENDPOINT_LOCAL)
    }
    return PortEntries(
        service,
        frontends,
        sets,
        members,
        ranges,
        tuple({row.key.ip for row in rows if row.kind == CLUSTER_IP}),
        balanced,
        served and bool(seconds),
    )


def outside(row: Frontend) -> bool:
    """Whether a row is dialled from outside the cluster, by several nodes: what Maglev is for."""
    return row.kind != CLUSTER_IP and carried(row)


def _balanced(
    rows: Sequence[Frontend], service: int, sets: dict[int, tuple[bytes, ...]], table_size: int
) -> tuple[int, ...]:
    """Return the sets that outsiders are given, where there is a choice, and a share of the table for everybody."""
    numbers = {
        layout.set_number(service, row.outsiders.endpoint_set == LOCAL)
        for row in rows
        if outside(row) and row.outsiders.verdict == DNAT
    }
    return tuple(sorted(number for number in numbers if 1 < len(sets.get(number, ())) <= table_size))


@lru_cache(maxsize=4096)
def _answers(outsiders: Target, pods: Target, node: Target) -> tuple[int, int, int]:
    """Return the answer bytes of a row; there are few different ones, and a great many rows."""
    return answer(outsiders), answer(pods), answer(node)


def pack_endpoint(endpoint: Endpoint) -> bytes:
    """Return struct endpoint4/6 of an endpoint."""
    ip, port, local = endpoint
    return ip + _endpoint_tail(port, local)


@lru_cache(maxsize=4096)
def _endpoint_tail(port: int, local: bool) -> bytes:
    """Return what follows the address in struct endpoint4/6: the same for the endpoints of most Services."""
    return layout.endpoint(b"", port, layout.ENDPOINT_LOCAL if local else 0)
