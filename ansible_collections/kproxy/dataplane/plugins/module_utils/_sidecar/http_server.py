# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 responder for probes and scrapes, on asyncio.

It answers GET and HEAD, one request per connection, and bounds what a client can cost: 8 KiB of request head and
ten seconds. Hundreds of health check ports share one event loop, where a thread per port would cost memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import socket
from typing import Callable

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.acceptor import Acceptor
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import HttpAnswer

MAX_HEAD_BYTES = 8192
REQUEST_SECONDS = 10.0

Respond = Callable[[str], HttpAnswer]


def plain(status: int, text: str) -> HttpAnswer:
    """Return a plain-text answer."""
    headers = (("Content-Type", "text/plain; charset=utf-8"), ("X-Content-Type-Options", "nosniff"))
    return HttpAnswer(status, headers, text.encode())


def serve(listener: socket.socket, respond: Respond) -> Acceptor:
    """Answer requests on a listening socket with respond(path) until the returned acceptor is closed."""

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that leaves or is too slow cannot be told anything.
        with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
            await asyncio.wait_for(_exchange(reader, writer, respond), REQUEST_SECONDS)

    return Acceptor(listener, exchange, MAX_HEAD_BYTES)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, respond: Respond) -> None:
    try:
        head: bytes | None = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        head = None
    method, answer = respond_to(head, respond)
    writer.write(encode(answer, with_body=method != "HEAD"))
    await writer.drain()


def respond_to(head: bytes | None, respond: Respond) -> tuple[str, HttpAnswer]:
    """Return the method and the answer for a request head (None: longer than the limit)."""
    if head is None:
        return "GET", plain(431, "request head too large\n")
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "GET", plain(400, "not an HTTP/1 request\n")
    method, target, _version = words
    if method not in ("GET", "HEAD"):
        return method, plain(405, "only GET and HEAD\n")
    return method, respond(target.split("?", 1)[0])


def encode(answer: HttpAnswer, with_body: bool = True) -> bytes:
    """Return the bytes of one response on a connection that ends with it."""
    lines = [f"HTTP/1.1 {answer.status} {http.HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines += [f"Content-Length: {len(answer.body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1") + (answer.body if with_body else b"")
