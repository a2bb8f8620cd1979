# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Routes, as the kernel would choose them for a packet of the current network namespace (rtnetlink(7))."""

from __future__ import annotations

import ipaddress
import socket
import struct
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_ROUTE,
    attribute,
    attribute_map,
    open_or_explain,
)

_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTA_DST, _RTA_OIF, _RTA_PREFSRC = 1, 4, 7
_INDEX = struct.Struct("=I")


class Route(NamedTuple):
    """A route to one destination.

    source: the address that an unbound socket's packets come from, "" if the route has none. interface: the name of the
    device they leave by, "" if it has none or that has gone.
    """

    source: str
    interface: str


def route_to(destination: str) -> Route:
    """Return the route to an address.

    A socket cannot be asked instead: a program at connect() may lead it elsewhere, or refuse.

    Raises:
        NetlinkError: there is none.
    """
    goal = ipaddress.ip_address(destination)
    family = socket.AF_INET if goal.version == 4 else socket.AF_INET6
    asked = _RTMSG.pack(family, goal.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute(_RTA_DST, goal.packed)
    with open_or_explain(NETLINK_ROUTE) as connection:
        replies = connection.request(f"find a route to {destination}", _RTM_GETROUTE, asked)
    parts = next((attribute_map(one.payload, _RTMSG.size) for one in replies if one.type == _RTM_NEWROUTE), {})
    source, index = parts.get(_RTA_PREFSRC), parts.get(_RTA_OIF)
    return Route(
        "" if source is None else str(ipaddress.ip_address(bytes(source))),
        "" if index is None else _name(*_INDEX.unpack(index)),
    )


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""
