# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The unix socket that kproxyctl talks to: one JSON line in, one JSON line out.

Only root may open it. A question waits in the inbox until the loop that owns the engine takes a snapshot between two
commits; turning the snapshot into JSON happens here, outside that loop.

Request:  {"version": 1, "command": "services", ...arguments}
Response: {"version": 1, "ok": true, "result": ...} or {"version": 1, "ok": false, "error": "one sentence"}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.acceptor import Acceptor

VERSION = 1
MAX_REQUEST_BYTES = 65536
ANSWER_SECONDS = 30.0

# What the loop hands back: a function that needs no lock because all it reads is immutable or its own copy.
Render = Callable[[], Any]


class QuestionError(Exception):
    """A question that cannot be answered; the message is for the person who asked."""


class Question(NamedTuple):
    """One request on its way to the loop that owns the engine."""

    command: str
    arguments: Mapping[str, Any]
    answer: Callable[[Render | QuestionError], None]


class ControlServer:
    """Owns the socket. Every method runs on the serving loop."""

    def __init__(self, path: str, ask: Callable[[Question], None]) -> None:
        """Take the socket's path and where questions go."""
        self._path = path
        self._ask = ask
        self._acceptor: Acceptor | None = None

    def open(self) -> None:
        """Listen. A socket left behind by a killed daemon is replaced. Raises OSError."""
        os.makedirs(os.path.dirname(self._path) or ".", mode=0o755, exist_ok=True)
        temporary = f"{self._path}.{os.getpid()}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            listener.bind(temporary)
            os.chmod(temporary, 0o600)
            listener.listen(16)
            # The path always names a socket that somebody listens on, also while one daemon follows another.
            os.replace(temporary, self._path)
        except OSError:
            listener.close()
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._acceptor = Acceptor(listener, self._serve, MAX_REQUEST_BYTES)

    def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._acceptor is not None:
            self._acceptor.close(drop_connections=True)
            self._acceptor = None
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                try:
                    line = await reader.readline()
                except ValueError:
                    line = b""  # Longer than the limit: no request of ours.
                if not line:
                    return
                document = await self._respond(line)
                writer.write(json.dumps(document, separators=(",", ":")).encode() + b"\n")
                await writer.drain()

    async def _respond(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
        except ValueError:
            return _failure("the request is not JSON")
        if not isinstance(request, dict) or not isinstance(request.get("command"), str):
            return _failure("the request names no command")
        if request.get("version") != VERSION:
            return _failure(
                f"the daemon speaks version {VERSION} of the protocol, kproxyctl version {request.get('version')}: "
                "use the kproxyctl of the same bundle"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Render | QuestionError] = loop.create_future()

        def deliver(render: Render | QuestionError) -> None:
            if not future.done():
                future.set_result(render)

        def answer(render: Render | QuestionError) -> None:
            loop.call_soon_threadsafe(deliver, render)

        self._ask(Question(request["command"], request, answer))
        try:
            render = await asyncio.wait_for(future, ANSWER_SECONDS)
        except asyncio.TimeoutError:
            return _failure(f"the daemon was busy for {ANSWER_SECONDS:.0f} s")
        if isinstance(render, QuestionError):
            return _failure(str(render))
        return {"version": VERSION, "ok": True, "result": await loop.run_in_executor(None, render)}


def _failure(text: str) -> dict[str, Any]:
    return {"version": VERSION, "ok": False, "error": text}
