# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How large the maps are made, and what is refused as a whole because it would not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import TABLES

#: No map is made larger: 4 million endpoints are half a gigabyte of kernel memory.
MOST_ENTRIES = 1 << 22
#: MiB that the Maglev tables of a node may take, unless told otherwise.
DEFAULT_TABLE_MEMORY = 512
#: Maps are made this much larger than the objects need now. An empty hash map costs its buckets only.
_HEADROOM = 2
#: Maglev tables are preallocated, so their headroom is paid for.
_SPARE_TABLES = 8
#: What the kernel adds to each preallocated element: its list node, hash and key.
_ELEMENT_OVERHEAD = 56
_MIB = 1 << 20


class CapacityError(Exception):
    """The entries do not fit. Nothing was written."""

    def __init__(self, lacking: Iterable[tuple[str, int, int]], reason: str = "") -> None:
        self.lacking = list(lacking)
        entries = "; ".join("map %s needs %d entries and has room for %d" % item for item in self.lacking)
        super().__init__(reason or entries)


class TableMemoryError(CapacityError):
    """The Maglev tables would take more memory than is allowed. Nothing was written."""

    def __init__(self, sets: int, table_size: int, needed: int, allowed: int) -> None:
        super().__init__(
            (),
            "Maglev tables of %d entries for %d endpoint sets need %d MiB of kernel memory, %d MiB are allowed: "
            "choose a smaller table size or allow more (maglevMemory)" % (table_size, sets, needed, allowed),
        )
        self.needed = needed


def check_capacity(needed: Mapping[str, int], room: Mapping[str, int]) -> None:
    """Raise CapacityError naming every map that is too small."""
    lacking = [(name, count, room[name]) for name, count in sorted(needed.items()) if count > room.get(name, count)]
    if lacking:
        raise CapacityError(lacking)


def room_for(needed: Mapping[str, int]) -> dict[str, int]:
    """Return how large to make each map. Raises CapacityError."""
    check_capacity(needed, dict.fromkeys(needed, MOST_ENTRIES))
    return {
        name: count + count // 4 + _SPARE_TABLES if name in TABLES else min(_HEADROOM * count, MOST_ENTRIES)
        for name, count in needed.items()
    }


def table_memory(tables: int, table_size: int) -> int:
    """Return the bytes of kernel memory for room for so many Maglev tables."""
    return tables * (layout.table_value_size(table_size) + _ELEMENT_OVERHEAD)


def check_table_memory(needed: Mapping[str, int], table_size: int, allowed: int) -> None:
    """Raise TableMemoryError if the tables' maps, with their headroom, take more than `allowed` MiB."""
    sets = sum(needed.get(name, 0) for name in TABLES)
    room = room_for({name: needed.get(name, 0) for name in TABLES})
    mib = -(-table_memory(sum(room.values()), table_size) // _MIB)
    if sets and mib > allowed:
        raise TableMemoryError(sets, table_size, mib, allowed)
