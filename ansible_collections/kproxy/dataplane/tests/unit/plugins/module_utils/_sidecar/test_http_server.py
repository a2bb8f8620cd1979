# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.http_server import encode, plain, respond_to


@pytest.mark.parametrize(
    ("head", "method", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", "GET", 200),
        (b"GET /healthz?verbose HTTP/1.0\r\n\r\n", "GET", 200),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", "HEAD", 200),
        (b"GET /other HTTP/1.1\r\n\r\n", "GET", 404),
        (b"POST /healthz HTTP/1.1\r\n\r\n", "POST", 405),
        (b"GET /healthz\r\n\r\n", "GET", 400),
        (b"GET /healthz HTTP/2\r\n\r\n", "GET", 400),
        (b"\xff\xfe\r\n\r\n", "GET", 400),
        (b"\r\n\r\n", "GET", 400),
        (None, "GET", 431),
    ],
)
def test_requests(head: bytes | None, method: str, status: int) -> None:
    found, answer = respond_to(head, lambda path: plain(200 if path == "/healthz" else 404, path))
    assert (found, answer.status) == (method, status)


def test_responses_say_how_long_they_are_and_that_they_are_the_last() -> None:
    answer = plain(503, "späť")
    head, body = encode(answer).split(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 503 Service Unavailable"
    assert b"Content-Length: 6" in head
    assert b"Connection: close" in head
    assert body == "späť".encode()
    assert encode(answer, with_body=False).endswith(b"\r\n\r\n")
