# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The XDP program on the devices that outsiders come in by: chosen, attached by pinned links, followed.

What XDP cannot take costs only its speed: the device's packets go on by tc, and `problems` says why. A link is pinned
as xdp_<mode>_<index>, so that the mode is known without asking.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import socket
import struct
from collections.abc import Mapping
from ctypes import addressof, create_string_buffer
from functools import partial
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.object_file import ObjectFile
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_link
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet, load_programs
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_ROUTE,
    NetlinkSocket,
    attribute_map,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import ETHERNET, Device

DISABLED, GENERIC, NATIVE, AUTO = "disabled", "generic", "native", "auto"
CHOICES = (DISABLED, GENERIC, NATIVE, AUTO)

_ATTACH_TYPE = 37
_FLAGS = {GENERIC: 1 << 1, NATIVE: 1 << 2}
#: Values of xdp_links, enum mode of src/xdp.bpf.c.
_MODES = {GENERIC: 1, NATIVE: 2}
#: Added to a device's index: a key that no program asks for, with the modes that the device has refused as bits. It
#: spares the next process the attempt that would tell.
_REFUSED = 1 << 31
_SECTION = "xdp"
_PREFIX = "xdp_"

_SIOCETHTOOL = 0x8946
_GET_DRIVER = 3
_SIOCGIFFLAGS = 0x8913
_PORT_OF_ANOTHER = 0x800  # IFF_SLAVE
_RTM_GETLINK = 18
_IFINFOMSG = struct.Struct("=BxHiII")
_IFLA_XDP, _IFLA_XDP_PROGRAM = 43, 4
_SERVED = "packets that come in by %s are served by tc"


class XdpOptions(NamedTuple):
    """Which mode, on which devices: patterns of names; without one, all hardware that is no port of another device."""

    mode: str = DISABLED
    devices: tuple[str, ...] = ()

    def modes(self, driver: str) -> tuple[str, ...]:
        """Return the modes to try on a device, in order. A veth takes native, and then loses what it sends."""
        if self.mode == AUTO:
            return (GENERIC,) if driver == "veth" else (NATIVE, GENERIC)
        return () if self.mode == DISABLED else (self.mode,)

    def takes(self, name: str, driver: Driver) -> bool:
        """Whether the program belongs on a device."""
        if self.devices:
            return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.devices)
        return driver.hardware


class Driver(NamedTuple):
    """What a device is; `hardware`: it sits on a bus and is no port of another device."""

    name: str
    hardware: bool


def driver_of(device: str) -> Driver:
    """Ask for a device's driver; an empty one if it tells none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = create_string_buffer(struct.pack("=I", _GET_DRIVER), 196)
        try:
            fcntl.ioctl(asking, _SIOCETHTOOL, struct.pack("16sQ16x", device.encode(), addressof(answer)))
            request = fcntl.ioctl(asking, _SIOCGIFFLAGS, struct.pack("16s24x", device.encode()))
        except OSError:
            return Driver("", False)
    (flags,) = struct.unpack_from("=H", request, 16)
    raw = answer.raw
    name, bus = (raw[start : start + 32].partition(b"\0")[0].decode() for start in (4, 100))
    return Driver(name, bool(bus) and not flags & _PORT_OF_ANOTHER)


def program_on(index: int) -> int:
    """Return the id of the XDP program on a device, 0 if there is none."""
    with NetlinkSocket(NETLINK_ROUTE) as connection:
        for reply in connection.dump("list devices", _RTM_GETLINK, _IFINFOMSG.pack(0, 0, 0, 0, 0)):
            if _IFINFOMSG.unpack_from(reply.payload)[2] == index:
                found = attribute_map(reply.payload, _IFINFOMSG.size).get(_IFLA_XDP)
                program = attribute_map(found).get(_IFLA_XDP_PROGRAM) if found is not None else None
                return int.from_bytes(program, "little") if program is not None else 0
    return 0


class XdpHooks:
    """Our XDP links; problems: why a device that should have the program has not, by name."""

    def __init__(self, parsed: ObjectFile, pins: str, options: XdpOptions) -> None:
        self.options = options
        self.problems: dict[str, str] = {}
        self.parsed = parsed
        self._pins = pins
        self._loaded: dict[str, int] = {}
        self._refused: dict[int, int] = {}
        self._constants: Mapping[str, int] = {}
        self._drivers: dict[tuple[str, int], Driver] = {}

    def pinned(self) -> dict[int, str]:
        """Return the mode by index of the devices that have a pinned link, or had one when they were there."""
        names = os.listdir(self._pins) if os.path.isdir(self._pins) else []
        parts = [name[len(_PREFIX) :].split("_") for name in names if name.startswith(_PREFIX)]
        return {int(index): mode for mode, index in parts}

    def modes(self, found: Mapping[str, Device]) -> dict[str, str]:
        """Return the mode by name of the devices that have a pinned link. found: devices by name."""
        held = self._held()
        return {name: held[device.index] for name, device in sorted(found.items()) if device.index in held}

    def in_place(self, maps: MapSet, found: Mapping[str, Device]) -> bool:
        """Whether follow() would change nothing. found: devices by name.

        A device that somebody else's program holds is left to it, and one that has refused every mode asked for is
        left to tc, so nothing would change there either.
        """
        wanted, held = self._wanted(found), self._held()
        refused = _refusals(maps) if wanted else {}
        right = not set(self.pinned()) - set(wanted.values())
        for name, index in wanted.items():
            if index in held:
                right = right and held[index] in self._modes(name, index)
            elif holder := program_on(index):
                self.problems[name] = _held_by(name, holder)
            elif all(refused.get(index, 0) >> _MODES[mode] & 1 for mode in self._modes(name, index)):
                self.problems[name] = _refuses(name, self._modes(name, index)[-1])
            else:
                right = False
        return right

    def follow(self, maps: MapSet, constants: Mapping[str, int], found: Mapping[str, Device], swap: bool) -> None:
        """Attach where the program is missing (`swap`: everywhere), detach where it does not belong.

        constants: of the program, the mode apart. found: devices by name.
        Raises OSError where the maps cannot be written; what goes wrong with a device is in `problems`.
        """
        if swap:
            self.close()
        self._constants = constants
        wanted, held = self._wanted(found), self._held()
        for index, mode in self.pinned().items():
            if index not in wanted.values() or index not in held:
                self._remove(mode, index)
        self.problems = {name: text for name, text in self.problems.items() if name in wanted}
        modes: dict[int, str] = {}
        self._refused.clear()
        for name, index in wanted.items():
            attached = self._attach(maps, name, index, held.get(index), swap)
            if attached:
                self.problems.pop(name, None)
                modes[index] = attached
        rows = {index: _MODES[mode] for index, mode in modes.items()}
        rows.update((index | _REFUSED, bits) for index, bits in self._refused.items())
        entries = {key.to_bytes(4, "little"): value.to_bytes(4, "little") for key, value in rows.items()}
        links = maps["xdp_links"]
        before = links.dump()
        if before != entries:
            links.update(entries)
            links.delete([key for key in before if key not in entries])

    def close(self) -> None:
        """Close the loaded programs; what is attached stays."""
        for descriptor in self._loaded.values():
            os.close(descriptor)
        self._loaded.clear()

    def _held(self) -> dict[int, str]:
        """Return the pinned links that are attached to a device of the index in their name."""
        links = {index: (mode, bpf_link.look(self._pin(mode, index))) for index, mode in self.pinned().items()}
        return {index: mode for index, (mode, link) in links.items() if link is not None and link.target == index}

    def _wanted(self, found: Mapping[str, Device]) -> dict[str, int]:
        if self.options.mode == DISABLED:
            return {}
        # Devices of pods come and go for as long as the node runs.
        here = {(name, device.index) for name, device in found.items()}
        self._drivers = {known: driver for known, driver in self._drivers.items() if known in here}
        return {
            name: device.index
            for name, device in found.items()
            if device.hardware == ETHERNET and self.options.takes(name, self._driver(name, device.index))
        }

    def _driver(self, name: str, index: int) -> Driver:
        if (name, index) not in self._drivers:
            self._drivers[name, index] = driver_of(name)
        return self._drivers[name, index]

    def _modes(self, name: str, index: int) -> tuple[str, ...]:
        return self.options.modes(self._driver(name, index).name)

    def _attach(self, maps: MapSet, name: str, index: int, held: str | None, swap: bool) -> str:
        """Attach to one device; the mode, empty if it has no program of ours."""
        modes = self._modes(name, index)
        if held in modes:
            if not swap:
                return held
            # What it took once it takes again, and a change of mode would be a gap.
            modes = (held,)
        elif held is not None:
            self._remove(held, index)
        for mode in modes:
            try:
                program = self._program(maps, mode)
                bpf_link.adopt_or_create(
                    self._pin(mode, index), program, partial(_attach_to_device, index, _FLAGS[mode])
                )
                return mode
            except bpf_link.ForeignProgram as error:
                self.problems[name] = "%s: packets that come in by %s are served by tc" % (error, name)
                return ""
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return ""
                self.problems[name] = _explain(name, index, mode, error)
                self._refused[index] = self._refused.get(index, 0) | 1 << _MODES[mode]
                if error.errno in (errno.EBUSY, errno.EEXIST):
                    return ""
        return ""

    def _program(self, maps: MapSet, mode: str) -> int:
        if mode not in self._loaded:
            constants = {**self._constants, "native": int(mode == NATIVE)}
            self._loaded[mode] = load_programs(self.parsed, maps, constants)[_SECTION]
        return self._loaded[mode]

    def _pin(self, mode: str, index: int) -> str:
        return os.path.join(self._pins, "%s%s_%d" % (_PREFIX, mode, index))

    def _remove(self, mode: str, index: int) -> None:
        bpf_link.remove(self._pin(mode, index))


def _refusals(maps: MapSet) -> dict[int, int]:
    """Return the modes that devices have refused, as bits, by index."""
    held = maps["xdp_links"].dump() if "xdp_links" in maps.maps else {}
    rows = {int.from_bytes(key, "little"): int.from_bytes(value, "little") for key, value in held.items()}
    return {key ^ _REFUSED: bits for key, bits in rows.items() if key & _REFUSED}


def _attach_to_device(index: int, flags: int, program: int) -> int:
    return bpf.link_create(program, index, _ATTACH_TYPE, flags)


def _held_by(name: str, holder: int) -> str:
    try:
        descriptor = bpf.program_by_number(holder)
    except OSError:
        title = ""
    else:
        title = bpf.program_info(descriptor).name
        os.close(descriptor)
    return "the XDP hook of %s is held by another program, %s (id %d): %s until it is detached" % (
        name, title or "without a name", holder, _SERVED % name)  # fmt: skip


def _refuses(name: str, mode: str) -> str:
    return "%s takes no %s XDP program: %s" % (name, mode, _SERVED % name)


def _explain(name: str, index: int, mode: str, error: OSError) -> str:
    holder = program_on(index)
    if error.errno in (errno.EBUSY, errno.EEXIST) and holder:
        return _held_by(name, holder)
    return "%s (%s)" % (_refuses(name, mode), error.strerror)
