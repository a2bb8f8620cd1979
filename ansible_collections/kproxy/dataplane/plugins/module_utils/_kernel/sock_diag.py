# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Find sockets by their peer and close them, in the current network namespace (NETLINK_SOCK_DIAG, sock_diag(7)).

Closing needs CONFIG_INET_DIAG_DESTROY. The socket's owner gets ECONNABORTED from its next call.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import NetlinkSocket

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_SOCK_DESTROY = 21
_ALL_STATES = 0xFFFFFFFF
_ID_SIZE = 48


class Socket(NamedTuple):
    """One socket; `identity` is the kernel's struct inet_diag_sockid, needed to close it."""

    family: int
    protocol: int
    cookie: int
    peer: bytes
    peer_port: int
    identity: bytes


def _request(family: int, protocol: int, identity: bytes) -> bytes:
    return struct.pack("=BBBBI", family, protocol, 0, 0, _ALL_STATES) + identity


def sockets(protocol: int) -> list[Socket]:
    """Return all sockets of a protocol, of both families. Raises NetlinkError."""
    found: list[Socket] = []
    with NetlinkSocket(_NETLINK_SOCK_DIAG) as connection:
        for family in (socket.AF_INET, socket.AF_INET6):
            for reply in connection.dump(
                "list sockets", _SOCK_DIAG_BY_FAMILY, _request(family, protocol, bytes(_ID_SIZE))
            ):
                identity = bytes(reply.payload[4 : 4 + _ID_SIZE])
                (peer_port,) = struct.unpack_from("!H", identity, 2)
                low, high = struct.unpack_from("=II", identity, 40)
                peer = identity[20:36] if reply.payload[0] == socket.AF_INET6 else identity[20:24]
                found.append(Socket(reply.payload[0], protocol, high << 32 | low, peer, peer_port, identity))
    return found


def destroy(target: Socket) -> bool:
    """Close a socket; False if it was gone. Raises NetlinkError (EOPNOTSUPP: the kernel cannot)."""
    with NetlinkSocket(_NETLINK_SOCK_DIAG) as connection:
        try:
            request = _request(target.family, target.protocol, target.identity)
            connection.request("close a socket", _SOCK_DESTROY, request)
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return False
    return True
