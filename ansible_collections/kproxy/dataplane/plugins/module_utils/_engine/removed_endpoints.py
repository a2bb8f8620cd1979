# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Closing the sockets that socket load balancing has connected to UDP endpoints which are gone.

A connected UDP socket keeps the endpoint it was given for as long as it lives; only closing it makes the program choose
anew. Closed are sockets that reached the endpoint through the service port, in every network namespace of the node;
a socket that dialled the endpoint itself stays, and so does TCP, which ends by itself.
"""

from __future__ import annotations

from collections.abc import Collection

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import sock_diag
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netns_walk import in_every_namespace

_UDP = 17
_MAPPED = b"\0" * 10 + b"\xff\xff"


def close_sockets(plane: Dataplane, dead: Collection[tuple[int, bytes, int]]) -> int:
    """Close UDP sockets translated to any of `dead` (service number, endpoint address, port); return how many."""
    cookies: dict[int, tuple[bytes, int]] = {}
    for name, elements in plane.read(("sockets4", "sockets6")).items():
        gone = []
        for key, value in elements.items():
            entry = layout.unpack_socket(key, value)
            if entry.protocol == _UDP and (entry.service, entry.endpoint_ip, entry.endpoint_port) in dead:
                cookies[entry.cookie] = (entry.endpoint_ip, entry.endpoint_port)
                gone.append(key)
        plane.maps[name].delete(gone)
    if not cookies:
        return 0
    return sum(in_every_namespace(lambda: _close_here(cookies)))


def _close_here(cookies: dict[int, tuple[bytes, int]]) -> int:
    closed = 0
    try:
        for held in sock_diag.sockets(_UDP):
            peer = held.peer[12:] if held.peer.startswith(_MAPPED) else held.peer
            if cookies.get(held.cookie) == (peer, held.peer_port):
                closed += sock_diag.destroy(held)
    except KernelError:
        return closed
    return closed
