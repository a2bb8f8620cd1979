"""Just enough HTTP/1.1 to serve an API: requests in, bodies and chunked streams out.

Written on asyncio streams rather than on a web framework because the stand-in must also be able to speak it wrongly:
close in the middle of a chunk, trickle bytes, send what is no HTTP at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

MAX_HEAD = 64 * 1024


class BadRequest(Exception):
    """What came in is no HTTP request."""


@dataclass(frozen=True)
class HttpRequest:
    """One request, body read."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class HttpResponse:
    """One answer: a body in parts with a known length, or an endless stream of chunks."""

    status: int
    body: Sequence[bytes] | AsyncIterator[bytes]
    headers: dict[str, str] = field(default_factory=dict)


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Read the next request of a connection; None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BadRequest("connection closed in the middle of a request head") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest("request head too long") from error
    lines = head.decode("latin-1").split("\r\n")
    try:
        method, target, _version = lines[0].split(" ")
    except ValueError as error:
        raise BadRequest(f"not a request line: {lines[0][:80]!r}") from error
    headers = {}
    for line in lines[1:]:
        if line:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
    if "chunked" in headers.get("transfer-encoding", ""):
        body = await _read_chunked(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    url = urlsplit(target)
    return HttpRequest(method, unquote(url.path), dict(parse_qsl(url.query, keep_blank_values=True)), headers, body)


async def _read_chunked(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
        if size == 0:
            return b"".join(parts)


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the status line and headers."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    lines = [f"HTTP/1.1 {status} {phrase}"] + [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def write_response(writer: asyncio.StreamWriter, response: HttpResponse) -> None:
    """Send an answer whole; a stream is sent until its source ends."""
    headers = {"Content-Type": "application/json", **response.headers}
    if isinstance(response.body, Sequence):
        headers["Content-Length"] = str(sum(len(part) for part in response.body))
        writer.write(head(response.status, headers))
        writer.writelines(response.body)
        await writer.drain()
        return
    headers["Transfer-Encoding"] = "chunked"
    writer.write(head(response.status, headers))
    await writer.drain()
    async for data in response.body:
        writer.write(chunk(data))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()
