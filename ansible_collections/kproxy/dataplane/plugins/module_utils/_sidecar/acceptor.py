# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Accept connections on a listening socket and give each its own task.

Opening and closing is synchronous (unlike asyncio.start_server), so "which ports are open" is never in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Callable

# Accepts per wake-up: enough for a burst, few enough that other connections are served in between.
ACCEPTS_PER_WAKEUP = 64
# Out of file descriptors or memory: give running connections time to end.
PAUSE_SECONDS = 0.5

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


def listening_socket(family: int, address: str, port: int, both_families: bool = False) -> socket.socket:
    """Return a listening TCP socket ("" is every address); OSError if it cannot be bound.

    A socket of family 6 takes IPv6 connections alone, so that a listener per family can tell its own family's state,
    unless both_families asks for IPv4 connections as well.
    """
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    listener = socket.socket(kind, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == 6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if both_families else 1)
        listener.bind((address, port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


class Acceptor:
    """Owns one listening socket and the tasks of its connections. Every method runs on the loop."""

    def __init__(self, listener: socket.socket, handle: Handle, limit: int) -> None:
        """Start accepting.

        Args:
            listener: a listening, non-blocking socket; closed by close().
            handle: runs for each connection; the connection is closed when it ends.
            limit: how many bytes a connection may buffer.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._handle = handle
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(listener.fileno(), self._accept)

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        return len(self._tasks)

    def close(self, drop_connections: bool = False) -> None:
        """Stop listening; connections go on unless they are to be dropped."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
        if drop_connections:
            for task in self._tasks:
                task.cancel()

    def _accept(self) -> None:
        for _attempt in range(ACCEPTS_PER_WAKEUP):
            try:
                connection, _peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(PAUSE_SECONDS, self._resume)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit)
        except OSError:
            connection.close()
            return
        try:
            await self._handle(reader, writer)
        finally:
            writer.close()
