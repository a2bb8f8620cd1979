"""The packet programs with maps of their own, attached to nothing, for runs of one packet at a time."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout, object_file, programs, served_blocks
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import TABLES
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.programs import tc
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_served_blocks
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_flow_filter import FlowFilter
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet, load_programs

OBJECT = object_file.parse(programs.unpack(tc.OBJECT))
#: Room for the values of every processor that there could be.
CPUS = 1024


class Programs:
    """Loading is slow, so tests share the programs and empty the maps between them.

    Filters are in use: a flow that was entered without its byte is not found, nor a frontend that was not marked.
    """

    def __init__(self, constants: Mapping[str, int]) -> None:
        size = layout.table_value_size(constants.get("table_size", 0))
        self.maps = MapSet(None)
        self.maps.ensure(OBJECT.maps, {}, dict.fromkeys(TABLES, size))
        self.loaded = load_programs(OBJECT, self.maps, constants)

    def empty(self) -> None:
        """Make all maps as they were, but for the settings."""
        for name, held in self.maps.maps.items():
            if name not in ("settings", "reasons", "refusals", "xdp_packets", "flow_filter", "served_blocks"):
                held.delete(list(held.dump()))
        with self.filter() as opened:
            for array in (0, 1):
                opened.clear(array)
            opened.read_from(0)
        bpf.map_update(self.maps["served_blocks"].fd, bytes(4), bytes(served_blocks.VALUE_SIZE))
        bpf_served_blocks.start(self.maps.maps)
        for index in range(len(layout.REASONS)):
            bpf.map_update(self.maps["reasons"].fd, index.to_bytes(4, "little"), bytes(8 * CPUS))

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Write one element, as a commit would."""
        bpf_served_blocks.mark(self.maps["served_blocks"], name, [key])
        self.maps[name].put(key, value)

    def filter(self) -> FlowFilter:
        """Open the filter in front of the flow tables."""
        return FlowFilter(self.maps["flow_filter"])

    def reason(self, name: str) -> int:
        """Return a counter of what was refused or dropped."""
        held = bpf.map_lookup(self.maps["reasons"].fd, layout.REASONS.index(name).to_bytes(4, "little"), 8 * CPUS)
        return sum(struct.unpack(f"={CPUS}Q", held or bytes(8 * CPUS)))

    def close(self) -> None:
        """Unload."""
        for descriptor in self.loaded.values():
            os.close(descriptor)
        self.maps.close()
