"""What one connection of a probe came to, however it was sent."""

from __future__ import annotations

from typing import NamedTuple

from devtools.conformance.corpus import SocketAddress

ANSWERED, REJECTED, SILENT, FAILED = "answered", "rejected", "silent", "failed"


class Observation(NamedTuple):
    """One connection.

    A model that knows what cannot be seen from outside reports it in ``affinity_seconds`` and ``passed``.
    """

    outcome: str
    client: int = 0
    """Which of the neighbouring clients: the same number is the same client in every probe of a case."""
    server: SocketAddress | None = None
    """The listener that answered; None: an ICMP echo."""
    source: str | None = None
    """The client's address as the server saw it."""
    source_kept: bool = True
    """Address, and for a client on the node the port too, arrived as sent."""
    detail: str = ""
    affinity_seconds: int | None = None
