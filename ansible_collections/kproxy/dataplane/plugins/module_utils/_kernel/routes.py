# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Routes, as the kernel would choose them for a packet of the current network namespace (rtnetlink(7))."""

from __future__ import annotations

import ipaddress
import socket
import struct

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_ROUTE,
    attribute,
    attribute_map,
    open_or_explain,
)

_RTM_NEWROUTE, _RTM_GETROUTE = 24, 26
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTA_DST, _RTA_PREFSRC = 1, 7


def source_towards(destination: str) -> str:
    """Return the address that an unbound socket's packets to a destination come from, "" if the route has none.

    A socket cannot be asked for it: a program at connect() may lead it elsewhere, or refuse. Raises NetlinkError: there
    is no route.
    """
    goal = ipaddress.ip_address(destination)
    family = socket.AF_INET if goal.version == 4 else socket.AF_INET6
    asked = _RTMSG.pack(family, goal.max_prefixlen, 0, 0, 0, 0, 0, 0, 0) + attribute(_RTA_DST, goal.packed)
    with open_or_explain(NETLINK_ROUTE) as connection:
        replies = connection.request(f"find a route to {destination}", _RTM_GETROUTE, asked)
    for reply in replies:
        if reply.type == _RTM_NEWROUTE:
            source = attribute_map(reply.payload, _RTMSG.size).get(_RTA_PREFSRC)
            return str(ipaddress.ip_address(bytes(source))) if source is not None else ""
    return ""
