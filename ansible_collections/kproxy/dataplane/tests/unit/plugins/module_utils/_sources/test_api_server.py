# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Reading an API server once: chunks, lists that expire, servers that fail, and answers that must stop everything."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources import api_server
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.connection import Connection
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError

# Path -> answers, used up one after the other; the last one stays. An answer is a status and a body.
Script = dict[str, list[tuple[int, Any]]]


def items(*names: str, token: str = "") -> tuple[int, Any]:
    """Return one chunk of a list."""
    return 200, {
        "kind": "ServiceList",
        "metadata": {"continue": token},
        "items": [{"metadata": {"name": n}} for n in names],
    }


EMPTY = items()
WHOLE: Script = {
    api_server.SERVICES: [items("a")],
    api_server.SLICES: [EMPTY],
    api_server.NODES: [EMPTY],
    api_server.SERVICE_CIDRS: [EMPTY],
}


class Server:
    """An HTTP server that answers from a script and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        """Listen on a free port of the loopback address."""
        self.asked: list[tuple[str, dict[str, list[str]], dict[str, str]]] = []
        answers = {path: list(given) for path, given in script.items()}
        asked = self.asked

        class Handler(http.server.BaseHTTPRequestHandler):
            """Answers one request."""

            def do_GET(self) -> None:
                """Take the next answer of the path."""
                parts = urlsplit(self.path)
                asked.append((parts.path, parse_qs(parts.query), dict(self.headers)))
                waiting = answers[parts.path]
                status, body = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        # By the interval it learns that it is to end.
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def servers() -> Iterator[Any]:
    """Yield a function that starts servers; all are stopped afterwards."""
    started: list[Server] = []

    def start(script: Script) -> Server:
        server = Server({**WHOLE, **script})
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


def names(documents: list[Any]) -> list[str]:
    """Return the names of all items of the lists."""
    return [item["metadata"]["name"] for document in documents for item in document["items"]]


def read(*urls: str, token: str | None = None) -> list[str]:
    """Read the cluster and return the names of the objects."""
    return names(api_server.read_cluster(Connection(servers=urls, token=token, timeout=60), "n1"))


def test_chunks_are_put_together(servers: Any) -> None:
    server = servers({api_server.SERVICES: [items("a", token="t 1"), items("b")]})
    assert read(server.url, token="secret") == ["a", "b"]
    first, second = server.asked[:2]
    assert first[1] == {"labelSelector": [api_server.NOT_ANOTHER_PROXYS], "limit": ["500"]}
    assert second[1]["continue"] == ["t 1"]
    assert {headers["Authorization"] for _path, _query, headers in server.asked} == {"Bearer secret"}


def test_only_this_node_is_asked_for(servers: Any) -> None:
    server = servers({})
    read(server.url)
    assert [query["fieldSelector"] for path, query, _headers in server.asked if path == api_server.NODES] == [
        ["metadata.name=n1"]
    ]


def test_a_list_that_expired_is_read_anew(servers: Any) -> None:
    server = servers({api_server.SERVICES: [items("a", token="t"), (410, {}), items("a", token="u"), items("b")]})
    assert read(server.url) == ["a", "b"]


def test_a_list_that_always_expires_ends(servers: Any) -> None:
    server = servers({api_server.SERVICES: [(410, {})]})
    with pytest.raises(SourceError, match="expired 3 times"):
        read(server.url)


@pytest.mark.parametrize("status", [404, 403])
def test_clusters_without_servicecidrs_or_the_right_to_see_them(servers: Any, status: int) -> None:
    assert read(servers({api_server.SERVICE_CIDRS: [(status, {})]}).url) == ["a"]


def test_an_empty_list_may_be_null(servers: Any) -> None:
    assert read(servers({api_server.SLICES: [(200, {"metadata": {}, "items": None})]}).url) == ["a"]


@pytest.mark.parametrize(
    "script",
    [
        {api_server.SLICES: [(500, {})]},
        {api_server.SLICES: [(503, {})]},
        {api_server.SLICES: [(429, {})]},
        {api_server.SLICES: [(200, b"<html>")]},
        {api_server.SLICES: [(200, b"[" * 100_000)]},
        {api_server.SLICES: [(200, {"kind": "Status"})]},
        {api_server.SLICES: [(200, [])]},
    ],
    ids=["500", "503", "429", "no JSON", "JSON without end", "no list", "an array"],
)
def test_the_next_server_is_asked_for_everything(servers: Any, script: Script) -> None:
    bad, good = servers(script), servers({api_server.SERVICES: [items("b")]})
    assert read(bad.url, good.url) == ["b"]
    with pytest.raises(SourceError, match=f"no API server gave a complete answer: {bad.url}"):
        read(bad.url)


def test_nobody_listens(servers: Any) -> None:
    # Bound, so that nobody else gets the port, and not listening.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        gone = "http://127.0.0.1:%d" % silent.getsockname()[1]
        assert read(gone, servers({}).url) == ["a"]
        with pytest.raises(SourceError, match="refused"):
            read(gone)


@pytest.mark.parametrize(
    ("status", "words"), [(401, "credentials are not accepted"), (403, "system:node-proxier"), (404, "is this the API")]
)
def test_refusals_say_what_to_do_and_end_the_reading(servers: Any, status: int, words: str) -> None:
    refusing, other = servers({api_server.SLICES: [(status, {})]}), servers({})
    with pytest.raises(SourceError, match=words):
        read(refusing.url, other.url)
    assert other.asked == []


def test_a_connection_never_prints_its_token() -> None:
    assert "secret" not in repr(Connection(servers=("https://192.0.2.1:6443",), token="secret"))
