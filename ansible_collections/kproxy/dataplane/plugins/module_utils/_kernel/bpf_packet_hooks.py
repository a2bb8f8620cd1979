# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The packet programs kept on devices: loaded once per kind of device, attached as devices come and go."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.object_file import ObjectFile
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_devices, bpf_link
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_devices import Hook
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet, load_programs
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import (
    ETHERNET,
    LOOPBACK,
    Device,
    devices,
)

#: Length of the link header that packets have on Ethernet and loopback devices; on others they have none.
ETHERNET_HEADER = 14
_LACKING = (
    "%s has a qdisc ingress, which keeps clsact away below Linux 6.6: packets that leave by it are not translated, so "
    "what is behind %s can serve, but dials Services by its sockets alone"
)


class PacketHooks:
    """Our ingress and egress programs. tcx: the kernel has such links; else they are clsact filters.

    problems: why a device that should have both has not, by name.
    """

    def __init__(self, parsed: ObjectFile, pins: str, tcx: bool) -> None:
        self.parsed = parsed
        self._pins = pins
        self.tcx = tcx
        self.problems: dict[str, str] = {}
        #: Descriptors by the length of the link header, then by direction.
        self._loaded: dict[int, dict[str, int]] = {}
        #: Ids of the programs that our links were seen to run.
        self._known: dict[Hook, int] = {}
        #: Hooks that have got filters, and hooks that are known to have none.
        self._filtered: set[Hook] = set()
        self._unfiltered: set[Hook] = set()

    def holding(self, found: Mapping[str, Device]) -> set[str]:
        """Return the names of the devices that have all the programs that they should have."""
        held = self._in_place(self._split(found, ())[0])
        return {name for name, device in found.items() if held.issuperset(_hooks(device))}

    def in_place(self, found: Mapping[str, Device], without: Collection[Device]) -> bool:
        """Whether follow() would attach and detach nothing. Arguments as there."""
        wanted, unwanted = self._split(found, without)
        if self._in_place(wanted) != wanted:
            return False
        held = bpf_devices.tcx_pinned(self._pins) if self.tcx else bpf_devices.clsact_filtered(unwanted)
        return held.isdisjoint(unwanted)

    def follow(
        self,
        maps: MapSet,
        constants: Mapping[str, int],
        found: Mapping[str, Device],
        without: Collection[Device],
        swap: bool,
    ) -> None:
        """Attach where the programs are missing (`swap`: load anew, attach everywhere); unpin links of lost devices.

        constants: of the programs, the link header apart. found: the devices that have the programs, by name. without:
        those that have not. Raises OSError.
        """
        if swap:
            self.close()
        wanted, unwanted = self._split(found, without)
        pinned = bpf_devices.tcx_pinned(self._pins) if self.tcx else set()
        held = self._in_place(wanted if self.tcx else self._filtered)
        self._known = {hook: number for hook, number in self._known.items() if hook in held}
        # What is pinned under the name of a hook and is attached elsewhere; then what no hook is wanted for.
        self._unpin((pinned & wanted) - held)
        for device in found.values():
            missing = [hook for hook in _hooks(device) if hook in wanted and (swap or hook not in held)]
            if missing:
                self._attach(maps, constants, device, missing)
        self._unpin(pinned - wanted)
        if not self.tcx:
            bpf_devices.detach_clsact(unwanted - self._unfiltered)
            self._filtered, self._unfiltered = wanted, unwanted

    def close(self) -> None:
        """Close the loaded programs; what is attached stays."""
        for loaded in self._loaded.values():
            for descriptor in loaded.values():
                os.close(descriptor)
        self._loaded.clear()

    def detach_filters(self) -> None:
        """Remove the filters of every device; links go with their pins."""
        if not self.tcx:
            indexes = [device.index for device in devices().values()]
            bpf_devices.detach_clsact((direction, index) for index in indexes for direction in bpf_devices.BOTH)

    def _split(self, found: Mapping[str, Device], without: Collection[Device]) -> tuple[set[Hook], set[Hook]]:
        """Return the hooks of all devices that should have a program and can, and those that should not."""
        half = bpf_devices.ingress_qdiscs() if not self.tcx else set()
        lacking = {(bpf_devices.EGRESS, index) for index in half}
        self.problems = {name: _LACKING % (name, name) for name, device in found.items() if device.index in half}
        wanted = {hook for device in found.values() for hook in _hooks(device)} - lacking
        indexes = {device.index for device in (*found.values(), *without)}
        every = {(direction, index) for index in indexes for direction in bpf_devices.BOTH}
        return wanted, every - wanted - lacking

    def _in_place(self, wanted: Collection[Hook]) -> set[Hook]:
        """Return those of the hooks that have their program. Anybody may remove a filter; a pin alone says nothing."""
        if not self.tcx:
            return bpf_devices.clsact_filtered(wanted)
        return {hook for hook in bpf_devices.tcx_pinned(self._pins).intersection(wanted) if self._linked(hook)}

    def _linked(self, hook: Hook) -> bool:
        """Whether a pinned link is attached to the device that has this index now, and here.

        The device that had the index before may have left its pin; and one that moved keeps its index where it went.
        """
        running = bpf_devices.tcx_programs(hook)
        if self._known.get(hook) in running:
            return True
        link = bpf_link.look(bpf_devices.tcx_pin(self._pins, *hook))
        if link is None or link.target != hook[1] or link.program not in running:
            return False
        # Asking the device alone is a quarter of the work, and this is asked with every link event.
        self._known[hook] = link.program
        return True

    def _unpin(self, hooks: Collection[Hook]) -> None:
        for direction, index in hooks:
            bpf_link.remove(bpf_devices.tcx_pin(self._pins, direction, index))

    def _attach(self, maps: MapSet, constants: Mapping[str, int], device: Device, hooks: Collection[Hook]) -> None:
        framed = device.hardware in (ETHERNET, LOOPBACK)
        programs = self._programs(maps, constants, ETHERNET_HEADER if framed else 0)
        loaded = {direction: programs[direction] for direction, _index in hooks}
        if self.tcx:
            bpf_devices.attach_tcx(self._pins, device.index, loaded)
        else:
            try:
                bpf_devices.attach_clsact(device.index, loaded)
            except NetlinkError as error:
                # Gone since it was listed.
                if error.errno != errno.ENODEV:
                    raise

    def _programs(self, maps: MapSet, constants: Mapping[str, int], link_header: int) -> dict[str, int]:
        if link_header not in self._loaded:
            loaded = load_programs(self.parsed, maps, {**constants, "link_header": link_header})
            self._loaded[link_header] = {section.partition("/")[2]: fd for section, fd in loaded.items()}
        return self._loaded[link_header]


def _hooks(device: Device) -> list[Hook]:
    return [(direction, device.index) for direction in bpf_devices.directions(device)]
