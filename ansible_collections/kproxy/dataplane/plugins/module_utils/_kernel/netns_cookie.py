# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The cookie by which programs tell one network namespace from another."""

from __future__ import annotations

import socket
import struct

_SO_NETNS_COOKIE = 71


def own_netns_cookie() -> int:
    """Return the cookie of the calling thread's network namespace (SO_NETNS_COOKIE, Linux 5.14)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        (cookie,) = struct.unpack("=Q", opened.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
    return int(cookie)
