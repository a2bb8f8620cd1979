# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""NodePorts on loopback, relayed in user space (KEP-6032, gate KubeProxyNFTablesLocalhostNodePorts).

Packets to 127.0.0.0/8 cannot be routed off the host without route_localnet, so nftables cannot serve them; a TCP
relay can. It listens on 127.0.0.1 and ::1 only while the NodePort has endpoints that may be used, and opens its own
connection to one of them. TCP only: the tables reject UDP and SCTP.

All clients share the address 127.0.0.1, so ClientIP affinity pins the whole listener to one endpoint until no
connection came for the affinity time or the endpoint left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import struct
import time
from collections.abc import Mapping
from typing import Callable, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.acceptor import Acceptor, listening_socket

LOG = logging.getLogger("kproxyd.relay")
LOOPBACK = {4: "127.0.0.1", 6: "::1"}
BUFFER_BYTES = 65536
CONNECT_SECONDS = 5.0
# How many endpoints one client connection may try before it is reset.
CONNECT_ATTEMPTS = 3
RETRY_SECONDS = 5.0
# SO_LINGER on with zero time: close() sends a reset, which is what the client of a failed relay should see.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Address = tuple[str, int]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RelayKey(NamedTuple):
    """One loopback listener."""

    family: int
    port: int


class Relay(NamedTuple):
    """What one loopback listener serves. No endpoints: it does not listen, open connections go on."""

    service_port: str
    endpoints: tuple[Address, ...]
    affinity_seconds: int = 0


class RelayCounters(NamedTuple):
    """What the metrics show: open listeners and failed attempts to open one, per family."""

    listeners: Mapping[int, int]
    creation_failures: Mapping[int, int]


class Picker:
    """Chooses the endpoint of each connection; remembers the choice while affinity lasts."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        shuffle: Callable[[list[Address]], None] = random.shuffle,
    ) -> None:
        """Take a clock and a way to put candidates into a random order."""
        self._clock = clock
        self._shuffle = shuffle
        self._pinned: Address | None = None
        self._pinned_until = 0.0

    def candidates(self, relay: Relay) -> list[Address]:
        """Return the endpoints to try, best first."""
        order = list(relay.endpoints)
        self._shuffle(order)
        if relay.affinity_seconds and self._pinned in relay.endpoints and self._clock() < self._pinned_until:
            order.sort(key=lambda endpoint: endpoint != self._pinned)
        return order[:CONNECT_ATTEMPTS]

    def connected(self, relay: Relay, endpoint: Address) -> None:
        """Remember the endpoint that took the connection; each new connection renews the pin."""
        if relay.affinity_seconds:
            self._pinned = endpoint
            self._pinned_until = self._clock() + relay.affinity_seconds


class LocalhostRelays:
    """All loopback listeners. Every method runs on the serving loop."""

    def __init__(self) -> None:
        """Start with nothing to serve."""
        self._wanted: dict[RelayKey, Relay] = {}
        self._open: dict[RelayKey, Acceptor] = {}
        self._retired: dict[RelayKey, list[Acceptor]] = {}
        self._pickers: dict[RelayKey, Picker] = {}
        self._failures: dict[int, int] = {4: 0, 6: 0}
        self._failing: set[RelayKey] = set()
        self._retry: asyncio.TimerHandle | None = None

    def update(self, wanted: Mapping[RelayKey, Relay]) -> None:
        """Serve exactly these. A NodePort that is gone takes its connections along; lost endpoints do not."""
        self._wanted = dict(wanted)
        for key in [key for key in self._pickers if key not in self._wanted]:
            self._forget(key)
        for key, relay in self._wanted.items():
            if not relay.endpoints and key in self._open:
                self._retire(key)
            elif relay.endpoints and key not in self._open:
                self._listen(key, relay)
        self._failing &= {key for key, relay in self._wanted.items() if relay.endpoints}
        self._schedule_retry()

    def counters(self) -> RelayCounters:
        """Return the figures for the metrics."""
        listeners = {family: sum(key.family == family for key in self._open) for family in LOOPBACK}
        return RelayCounters(listeners, dict(self._failures))

    def close(self) -> None:
        """Stop listening and drop every connection."""
        self.update({})

    def _forget(self, key: RelayKey) -> None:
        if key in self._open:
            self._retire(key)
        for acceptor in self._retired.pop(key, []):
            acceptor.close(drop_connections=True)
        del self._pickers[key]

    def _retire(self, key: RelayKey) -> None:
        acceptor = self._open.pop(key)
        acceptor.close()
        busy = [one for one in self._retired.get(key, []) if one.connections]
        self._retired[key] = [*busy, acceptor]

    def _listen(self, key: RelayKey, relay: Relay) -> None:
        self._pickers.setdefault(key, Picker())
        try:
            listener = listening_socket(key.family, LOOPBACK[key.family], key.port)
        except OSError as error:
            self._failures[key.family] += 1
            if key not in self._failing:
                LOG.warning(
                    "%s: loopback NodePort [%s]:%d cannot be opened: %s; trying again every %.0f s",
                    relay.service_port, LOOPBACK[key.family], key.port, error.strerror, RETRY_SECONDS,
                )  # fmt: skip
            self._failing.add(key)
            return
        self._failing.discard(key)

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(key, reader, writer)

        self._open[key] = Acceptor(listener, connected, BUFFER_BYTES)

    async def _serve(self, key: RelayKey, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = self._wanted.get(key)
        upstream = await self._dial(relay, self._pickers[key]) if relay is not None else None
        if upstream is None:
            _reset(writer)
            return
        await splice((reader, writer), upstream)

    async def _dial(self, relay: Relay, picker: Picker) -> Stream | None:
        for endpoint in picker.candidates(relay):
            try:
                connection = await asyncio.wait_for(
                    asyncio.open_connection(*endpoint, limit=BUFFER_BYTES), CONNECT_SECONDS
                )
            except (OSError, asyncio.TimeoutError) as error:
                LOG.warning("%s: endpoint %s:%d does not answer: %s", relay.service_port, *endpoint, error)
                continue
            picker.connected(relay, endpoint)
            return connection
        return None

    def _schedule_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._failing:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.update, self._wanted)


async def splice(client: Stream, upstream: Stream) -> None:
    """Copy both directions until both have ended; an end of stream is passed on, an error resets both sides.

    A side that reads slowly stops the other from sending: no more than the stream buffers is held.
    """
    copies = [
        asyncio.ensure_future(_copy(client[0], upstream[1])),
        asyncio.ensure_future(_copy(upstream[0], client[1])),
    ]
    try:
        await asyncio.gather(*copies)
    except OSError:
        _reset(client[1])
        _reset(upstream[1])
    except asyncio.CancelledError:
        _reset(client[1])
        _reset(upstream[1])
        raise
    finally:
        for copy in copies:
            copy.cancel()
        upstream[1].close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while True:
        data = await source.read(BUFFER_BYTES)
        if not data:
            break
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    writer.transport.abort()
