# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The peers that the kernel has for the sockets of a namespace (/proc/net/tcp and its like, proc(5)).

A program on the cgroup may have led a socket elsewhere than its owner dialled. getpeername(2) is kept from telling by
another such program, so the kernel's own table is asked.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable

End = tuple[str, int]

_INODE = 9
_FILES = {("TCP", 4): "tcp", ("TCP", 6): "tcp6", ("UDP", 4): "udp", ("UDP", 6): "udp6"}


def peers(protocol: str, family: int) -> dict[int, End]:
    """Return the peer of each connected socket of the calling thread's namespace by its inode; none for SCTP."""
    name = _FILES.get((protocol, family))
    if name is None:
        return {}
    with open(f"/proc/thread-self/net/{name}", encoding="ascii") as table:
        return parse(table)


def parse(lines: Iterable[str]) -> dict[int, End]:
    """Return inodes and peers of a table of /proc/net; the heading and sockets without a peer are left out.

    A socket's own end would not tell it from others: a source port serves several destinations at once, and for a while
    after its connection is closed (TIME-WAIT, which has no inode).
    """
    found = {}
    for line in lines:
        words = line.split()
        if len(words) > _INODE and words[0].endswith(":"):
            peer, inode = _end(words[2]), int(words[_INODE])
            if peer[1] and inode:
                found[inode] = peer
    return found


def _end(word: str) -> End:
    """Return an address and a port: words of the machine's own byte order, then the port in hexadecimal."""
    digits, _colon, port = word.partition(":")
    raw = b"".join(struct.pack("=I", int(digits[start : start + 8], 16)) for start in range(0, len(digits), 8))
    family = socket.AF_INET if len(raw) == 4 else socket.AF_INET6
    # As Python's sockets write addresses; ipaddress agrees with inet_ntop on all that a client can have.
    text = socket.inet_ntop(family, raw)
    return str(ipaddress.ip_address(text)), int(port, 16)
