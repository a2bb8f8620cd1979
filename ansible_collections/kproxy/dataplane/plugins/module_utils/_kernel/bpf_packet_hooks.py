# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The packet programs kept on devices: loaded once per kind of device, attached as devices come and go."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.object_file import ObjectFile
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_devices
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet, load_programs

#: Length of the link header that packets have on Ethernet and loopback devices; on others they have none.
ETHERNET_HEADER = 14


class PacketHooks:
    """Our ingress and egress programs. tcx: the kernel has such links; else they are clsact filters."""

    def __init__(self, parsed: ObjectFile, pins: str, tcx: bool) -> None:
        self._object = parsed
        self._pins = pins
        self.tcx = tcx
        #: Descriptors by the length of the link header, then by direction.
        self._loaded: dict[int, dict[str, int]] = {}
        #: Directions by the index of each device that has got filters.
        self._filtered: dict[int, tuple[str, ...]] = {}
        #: Indexes of excluded devices that are known to have no filters.
        self._unfiltered: frozenset[int] = frozenset()

    def holding(self, found: Mapping[str, tuple[int, int]]) -> set[int]:
        """Return the indexes of the devices that have their programs. found: (index, hardware type) by name.

        A pin alone says nothing: its device may have gone, or moved to the pod that it was made for, and another have
        come under the same index.
        """
        wanted = {index: bpf_devices.directions(hardware) for index, hardware in found.values()}
        if not self.tcx:
            return bpf_devices.clsact_indexes(wanted)
        pinned = bpf_devices.tcx_indexes(self._pins)
        return {
            index for index in pinned.intersection(wanted) if bpf_devices.tcx_holds(self._pins, index, wanted[index])
        }

    def in_place(self, found: Mapping[str, tuple[int, int]], without: Collection[int]) -> bool:
        """Whether follow() would attach and detach nothing. Arguments as there."""
        if self.holding(found) != {index for index, _hardware in found.values()}:
            return False
        if self.tcx:
            return bpf_devices.tcx_indexes(self._pins).isdisjoint(without)
        return not bpf_devices.clsact_indexes(dict.fromkeys(without, (bpf_devices.EGRESS,)))

    def follow(
        self,
        maps: MapSet,
        constants: Mapping[str, int],
        found: Mapping[str, tuple[int, int]],
        without: Collection[int],
        swap: bool,
    ) -> None:
        """Attach where the programs are missing (`swap`: load anew, attach everywhere); unpin links of lost devices.

        constants: of the programs, the link header apart. found: (index, hardware type) by name, of the devices that
        have the programs. without: indexes of those that have not. Raises OSError.
        """
        if swap:
            self.close()
        held = self.holding(found) if self.tcx else self._filters_in_place()
        if self.tcx:
            for index in bpf_devices.tcx_indexes(self._pins) - held:
                bpf_devices.detach_tcx(self._pins, index)
        for index, hardware in found.values():
            if swap or index not in held:
                self._attach(maps, constants, index, hardware)
        if not self.tcx:
            for index in set(without) - self._unfiltered:
                bpf_devices.detach_clsact(index)
                self._filtered.pop(index, None)
            self._unfiltered = frozenset(without)

    def close(self) -> None:
        """Close the loaded programs; what is attached stays."""
        for loaded in self._loaded.values():
            for descriptor in loaded.values():
                os.close(descriptor)
        self._loaded.clear()

    def detach_filters(self) -> None:
        """Remove the filters of every device; links go with their pins."""
        if not self.tcx:
            for index, _hardware in bpf_devices.devices().values():
                bpf_devices.detach_clsact(index)

    def _attach(self, maps: MapSet, constants: Mapping[str, int], index: int, hardware: int) -> None:
        framed = hardware in (bpf_devices.ETHERNET, bpf_devices.LOOPBACK)
        programs = self._programs(maps, constants, ETHERNET_HEADER if framed else 0)
        loaded = {direction: programs[direction] for direction in bpf_devices.directions(hardware)}
        if self.tcx:
            bpf_devices.attach_tcx(self._pins, index, loaded)
        else:
            bpf_devices.attach_clsact(index, loaded)
            self._filtered[index] = tuple(loaded)

    def _programs(self, maps: MapSet, constants: Mapping[str, int], link_header: int) -> dict[str, int]:
        if link_header not in self._loaded:
            loaded = load_programs(self._object, maps, {**constants, "link_header": link_header})
            self._loaded[link_header] = {section.partition("/")[2]: fd for section, fd in loaded.items()}
        return self._loaded[link_header]

    def _filters_in_place(self) -> set[int]:
        """Return the devices whose filters are still there: unlike a link, anybody may remove a filter."""
        held = bpf_devices.clsact_indexes(self._filtered)
        self._filtered = {index: directions for index, directions in self._filtered.items() if index in held}
        return held
