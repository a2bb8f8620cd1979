# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The devices of the current network namespace, as far as packet programs care."""

from __future__ import annotations

import fnmatch
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_ROUTE,
    attribute,
    attribute_map,
    open_or_explain,
    text,
)

ETHERNET = 1
LOOPBACK = 772
_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFINFOMSG = struct.Struct("=BxHiII")
_IFLA_IFNAME, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_EXT_MASK = 3, 10, 18, 29
_IFLA_INFO_SLAVE_KIND = 4
_SKIP_STATISTICS = attribute(_IFLA_EXT_MASK, struct.pack("=I", 1 << 3))


@dataclass(frozen=True)
class Device:
    """One device. hardware: its type of link header (ARPHRD).

    port: what comes in by it comes in once more, by the bridge, bond or team that it belongs to. A VRF is no such.
    """

    index: int
    hardware: int
    port: bool = False


def devices() -> dict[str, Device]:
    """Return every device by name. Raises KernelError."""
    with open_or_explain(NETLINK_ROUTE) as connection:
        replies = connection.dump("list devices", _RTM_GETLINK, _IFINFOMSG.pack(0, 0, 0, 0, 0) + _SKIP_STATISTICS)
    return dict(device_of(reply.payload) for reply in replies if reply.type == _RTM_NEWLINK)


def excluded(names: Iterable[str], patterns: Collection[str]) -> set[str]:
    """Return those of the names that one of the patterns matches."""
    return {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}


def device_of(link: memoryview) -> tuple[str, Device]:
    """Return name and device of an RTM_NEWLINK message's payload."""
    _family, hardware, index, _flags, _change = _IFINFOMSG.unpack_from(link)
    parts = attribute_map(link, _IFINFOMSG.size)
    port = False
    if _IFLA_MASTER in parts:
        kind = attribute_map(parts[_IFLA_LINKINFO]).get(_IFLA_INFO_SLAVE_KIND) if _IFLA_LINKINFO in parts else None
        port = kind is None or text(kind) != "vrf"
    return text(parts[_IFLA_IFNAME]), Device(index, hardware, port)
