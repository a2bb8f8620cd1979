# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The addresses of this node's interfaces, and a sign that they changed.

NodePorts answer on them, so a change must take effect at once (kube-proxy rereads them once an hour).
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_ROUTE,
    Message,
    attribute_map,
    messages,
    open_or_explain,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.subscription import Subscription

_RTM_NEWADDR, _RTM_DELADDR, _RTM_GETADDR = 20, 21, 22
_IFADDRMSG = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL, _IFA_FLAGS = 1, 2, 8
_IFA_F_DADFAILED, _IFA_F_TENTATIVE = 0x08, 0x40
_RTNLGRP_IPV4_IFADDR, _RTNLGRP_IPV6_IFADDR = 5, 9
_SCOPE_LINK, _SCOPE_HOST = 253, 254
_FAMILIES = {socket.AF_INET: 4, socket.AF_INET6: 6}


class LocalAddress(NamedTuple):
    """One address of one interface; `address` is packed.

    Attributes:
        scope: "global", "link" or "host" (loopback).
        usable: False while duplicate address detection runs or after it failed.
    """

    family: int
    address: bytes
    prefix_length: int
    interface: str
    scope: str
    usable: bool


def local_addresses(family: int | None = None) -> list[LocalAddress]:
    """Return the addresses of all interfaces in this network namespace.

    Args:
        family: 4, 6, or None for both.
    """
    wanted = {4: socket.AF_INET, 6: socket.AF_INET6, None: socket.AF_UNSPEC}[family]
    with open_or_explain(NETLINK_ROUTE) as connection:
        replies = connection.dump("list addresses", _RTM_GETADDR, _IFADDRMSG.pack(wanted, 0, 0, 0, 0))
    return [address for address in map(_decode, replies) if address is not None]


def _decode(reply: Message) -> LocalAddress | None:
    if reply.type != _RTM_NEWADDR or len(reply.payload) < _IFADDRMSG.size:
        return None
    number, length, flags, scope, index = _IFADDRMSG.unpack_from(reply.payload)
    parts = attribute_map(reply.payload, _IFADDRMSG.size)
    # On a point-to-point link IFA_ADDRESS is the other end.
    packed = parts.get(_IFA_LOCAL, parts.get(_IFA_ADDRESS))
    if number not in _FAMILIES or packed is None:
        return None
    if _IFA_FLAGS in parts:
        (flags,) = struct.unpack("=I", parts[_IFA_FLAGS])
    word = "host" if scope == _SCOPE_HOST else "link" if scope == _SCOPE_LINK else "global"
    usable = not flags & (_IFA_F_DADFAILED | _IFA_F_TENTATIVE)
    return LocalAddress(_FAMILIES[number], bytes(packed), length, _interface(index), word, usable)


def _interface(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:  # gone since it was listed
        return f"if{index}"


class AddressWatch(Subscription):
    """A subscription to address changes. `fileno()` is readable when `changed()` has something to look at."""

    def __init__(self) -> None:
        super().__init__(NETLINK_ROUTE)
        for group in (_RTNLGRP_IPV4_IFADDR, _RTNLGRP_IPV6_IFADDR):
            self._socket.join(group)

    def changed(self) -> bool:
        """Tell whether an address came, went or changed since the last call; also when notifications were lost."""
        found = False
        for data in self._told():
            found = found or data is None or any(m.type in (_RTM_NEWADDR, _RTM_DELADDR) for m in messages(data))
        return found
