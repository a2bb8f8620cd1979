# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which tracked UDP flows must go because their endpoint has gone.

UDP has no end of a connection: a client that keeps sending keeps its flow, and with it the old translation, for as
long as it likes. TCP and SCTP end by themselves and are never touched.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import family_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import UDP


class UdpFlow(NamedTuple):
    """A flow, as the client dialled it and as it was translated; replied: an answer has been seen."""

    destination: bytes
    port: int
    reply_source: bytes
    reply_port: int
    replied: bool


def is_stale(table: ServiceTable, flow: UdpFlow, local_addresses: Collection[bytes]) -> bool:
    """Whether a flow to a Service leads to what is not a serving endpoint of it.

    Policies, hints and draining do not matter: an endpoint that still serves keeps its flows. Without any serving
    endpoint there is nowhere better to go: a flow that was answered is left alone, while one that never was is a
    client sending into the void, which should learn of it. Source: pkg/proxy/conntrack/cleanup.go; the last rule
    goes beyond it.
    """
    serving = _serving(table, flow, local_addresses)
    if serving is None:
        return False
    translated = (flow.reply_source, flow.reply_port) != (flow.destination, flow.port)
    if not serving:
        return translated and not flow.replied
    return (flow.reply_source, flow.reply_port) not in serving


def _serving(
    table: ServiceTable, flow: UdpFlow, local_addresses: Collection[bytes]
) -> frozenset[tuple[bytes, int]] | None:
    """Return the serving endpoints of the service port that a flow was dialled to; None if it is no Service's."""
    family = family_of(flow.destination)
    row = table.frontends.get(FrontendKey(family, flow.destination, UDP, flow.port))
    if row is None and flow.destination in local_addresses:
        row = table.frontends.get(FrontendKey(family, b"", UDP, flow.port))
    if row is None:
        return None
    for port in table.built[row.service_port[:2]].ports:
        if port.name == row.service_port and port.family == family:
            return port.serving
    return None
