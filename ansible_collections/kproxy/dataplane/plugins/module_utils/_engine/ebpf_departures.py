# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""UDP endpoints that have left: whatever still leads to them is ended. TCP ends by itself.

A connected UDP socket keeps the endpoint it was given for as long as it lives; only closing it makes the program choose
anew. Closed are sockets that reached the endpoint through the service port, in every network namespace of the node; a
socket that dialled the endpoint itself stays. An endpoint that is draining still serves, and keeps what it has.

What is in the kernel is compared with the service table, and not one table with another: an endpoint may leave long
after it was taken out of the maps, and while nobody was there to see it.
"""

from __future__ import annotations

from collections.abc import Set

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flows, layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import Books
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import ServicePortName
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import sock_diag
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netns_walk import in_every_namespace

_FAMILIES = (4, 6)
_UDP = 17
_MAPPED = b"\0" * 10 + b"\xff\xff"
_NOBODY: frozenset[tuple[bytes, int]] = frozenset()


class Serving:
    """The (address, port) of the endpoints that serve, draining ones included, by a service port's number."""

    def __init__(self, books: Books, table: ServiceTable) -> None:
        """Take what numbers stand for, and the table that the maps follow."""
        self._names = books.numbers.names()
        self._table = table
        self._found: dict[int, Set[tuple[bytes, int]]] = {}

    def of(self, number: int) -> Set[tuple[bytes, int]]:
        """Return the endpoints of one number; none if its service port is gone."""
        if number not in self._found:
            name = self._names.get(number)
            self._found[number] = self._of_port(name) if name is not None else _NOBODY
        return self._found[number]

    def _of_port(self, name: ServicePortName) -> Set[tuple[bytes, int]]:
        built = self._table.built.get((name.namespace, name.name))
        parts = [part.serving for part in built.ports if part.name == name] if built is not None else []
        return _NOBODY.union(*parts)


def end_departed(plane: Dataplane, books: Books, table: ServiceTable) -> str:
    """End UDP flows and close UDP sockets that lead to endpoints which serve no more.

    Returns why some may still be open, empty if none is. Call it when the maps say what the table says, so that nothing
    new leads there. Raises OSError.
    """
    serving = Serving(books, table)
    for family in _FAMILIES:
        opened = plane.maps["flows%d" % family]
        found = ((key, flows.unpack_flow(key, value)) for key, value in opened.dump().items())
        # Number 0 is a direct connection that was kept apart from a translated one.
        opened.delete([key for key, flow in found if flow.service and flows.stale(flow, serving.of(flow.service))])
    cookies: dict[int, tuple[bytes, int]] = {}
    for family in _FAMILIES:
        opened = plane.maps["sockets%d" % family]
        gone = []
        for key, value in opened.dump().items():
            entry = layout.unpack_socket(key, value)
            endpoint = (entry.endpoint_ip, entry.endpoint_port)
            if entry.protocol == _UDP and endpoint not in serving.of(entry.service):
                cookies[entry.cookie] = endpoint
                gone.append(key)
        opened.delete(gone)
    if not cookies:
        return ""
    said, unseen = in_every_namespace(lambda: _close_here(cookies))
    reasons = [text for text in (unseen, *dict.fromkeys(said)) if text]
    return "UDP sockets may still lead to endpoints that are gone: %s" % "; ".join(reasons) if reasons else ""


def _close_here(cookies: dict[int, tuple[bytes, int]]) -> str:
    """Close the sockets of this network namespace that are connected to where their entry says; return what failed."""
    try:
        for held in sock_diag.sockets(_UDP):
            peer = held.peer[12:] if held.peer.startswith(_MAPPED) else held.peer
            if cookies.get(held.cookie) == (peer, held.peer_port):
                sock_diag.destroy(held)
    except KernelError as error:
        return str(error)
    return ""
