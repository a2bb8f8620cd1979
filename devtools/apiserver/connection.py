"""One client connection: requests in turn, each answered rightly or as a fault orders."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from devtools.apiserver.faults import (
    Action,
    CutMidChunk,
    Drop,
    ErrorEvent,
    Garbage,
    Hang,
    NotHttp,
    Refuse,
    Reply,
    ReplyStream,
    Slow,
)
from devtools.apiserver.http import BadRequest, HttpRequest, HttpResponse, chunk, head, read_request, write_response
from devtools.apiserver.status import ApiStatus
from devtools.apiserver.store import encode, watch_event

Prepare = Callable[[HttpRequest, ssl.SSLObject | None, int], Awaitable[tuple[HttpResponse, Action | None]]]
CHUNKED = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}


class Connection:
    """Serves one connection until either side closes it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prepare: Prepare, port: int) -> None:
        self._reader = reader
        self._writer = writer
        self._prepare = prepare
        self._port = port

    async def serve(self) -> None:
        """Answer requests until the connection ends."""
        tls: ssl.SSLObject | None = self._writer.get_extra_info("ssl_object")
        try:
            while True:
                request = await read_request(self._reader)
                if request is None:
                    return
                response, action = await self._prepare(request, tls, self._port)
                if not await self._respond(response, action):
                    return
        except (ConnectionError, BadRequest, ssl.SSLError, asyncio.IncompleteReadError):
            return  # the client left, or does not speak HTTP
        finally:
            self._writer.transport.abort()

    async def _respond(self, response: HttpResponse, action: Action | None) -> bool:
        """Send the answer; return whether the connection can take another request."""
        if action is None:
            sending = write_response(self._writer, response)
            await (sending if isinstance(response.body, Sequence) else self._until_client_leaves(sending))
            return True
        if isinstance(action, Hang):
            await self._reader.read()
        elif isinstance(action, NotHttp):
            self._writer.write(action.raw)
            await self._close()
        elif isinstance(action, Garbage):
            await self._stream([action.body], hold=False)
        elif isinstance(action, Reply):
            await write_response(self._writer, HttpResponse(200, [action.body]))
            return True
        elif isinstance(action, ReplyStream):
            await self._stream([line.rstrip(b"\n") + b"\n" for line in action.lines], hold=action.hold)
        elif isinstance(action, ErrorEvent):
            status = ApiStatus(action.code, action.message or f"injected {action.code}")
            await self._stream([watch_event("ERROR", encode(status.body()))], hold=False)
        elif isinstance(action, Refuse):
            status = action.status()
            headers = {} if status.retry_after is None else {"Retry-After": str(status.retry_after)}
            await write_response(self._writer, HttpResponse(status.code, [encode(status.body())], headers))
            return True
        elif isinstance(action, Slow):
            await self._trickle(response, action)
        elif isinstance(action, CutMidChunk):
            await self._cut(response, action.after)
        elif isinstance(action, Drop):
            pass
        return False

    async def _until_client_leaves(self, sending: Awaitable[None]) -> None:
        """Send a stream, but stop when the client closes: a quiet watch would not notice otherwise.

        The client has nothing to say before the stream ends, so whatever can be read means that it left.
        """
        task = asyncio.ensure_future(sending)
        gone = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            else:
                raise ConnectionResetError("client closed the connection")
        finally:
            for pending in (task, gone):
                pending.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _stream(self, parts: Sequence[bytes], *, hold: bool) -> None:
        self._writer.write(head(200, CHUNKED))
        for part in parts:
            self._writer.write(chunk(part))
        await self._writer.drain()
        if hold:
            await self._reader.read()
        else:
            self._writer.write(b"0\r\n\r\n")
            await self._close()

    async def _body(self, response: HttpResponse) -> AsyncIterator[bytes]:
        if isinstance(response.body, Sequence):
            for part in response.body:
                yield part
        else:
            async for part in response.body:
                yield part

    async def _trickle(self, response: HttpResponse, slow: Slow) -> None:
        self._writer.write(head(response.status, CHUNKED))
        async for part in self._body(response):
            for start in range(0, len(part), slow.piece):
                await asyncio.sleep(slow.pause_seconds)
                self._writer.write(chunk(part[start : start + slow.piece]))
                await self._writer.drain()
        self._writer.write(b"0\r\n\r\n")
        await self._close()

    async def _cut(self, response: HttpResponse, after: int) -> None:
        self._writer.write(head(response.status, CHUNKED))
        sent = 0
        async for part in self._body(response):
            piece = part[: after - sent]
            # The chunk announces more than it delivers.
            self._writer.write(b"%x\r\n%s" % (len(part) + 64, piece))
            sent += len(piece)
            await self._writer.drain()
            break
        await self._close()

    async def _close(self) -> None:
        """Let what was written reach the client, then close."""
        await self._writer.drain()
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # the client closed first
            await self._writer.wait_closed()
