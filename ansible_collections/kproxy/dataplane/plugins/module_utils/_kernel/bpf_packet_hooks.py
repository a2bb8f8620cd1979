# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The packet programs kept on every device: loaded once per kind of device, attached as devices come and go."""

from __future__ import annotations

import os
from collections.abc import Mapping

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

    def follow(
        self, maps: MapSet, constants: Mapping[str, int], found: Mapping[str, tuple[int, int]], swap: bool
    ) -> None:
        """Attach where the programs are missing (`swap`: load anew, attach everywhere); unpin links of lost devices.

        constants: of the programs, the link header apart. found: (index, hardware type) by name. Raises OSError.
        """
        if swap:
            self.close()
        held = bpf_devices.tcx_indexes(self._pins) if self.tcx else self._filters_in_place()
        for index, hardware in found.values():
            if swap or index not in held:
                self._attach(maps, constants, index, hardware)
        for index in held - {index for index, _hardware in found.values()}:
            for direction in (bpf_devices.INGRESS, bpf_devices.EGRESS):
                path = bpf_devices.tcx_pin(self._pins, direction, index)
                if os.path.exists(path):
                    os.unlink(path)

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
        loaded = self._programs(maps, constants, ETHERNET_HEADER if framed else 0)
        if hardware == bpf_devices.LOOPBACK:
            loaded = {bpf_devices.EGRESS: loaded[bpf_devices.EGRESS]}
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
