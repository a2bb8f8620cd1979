# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Requests to whichever API server works, with credentials that may be renewed at any time.

urllib3 does connections, TLS and HTTP framing; what is here is what the Kubernetes API adds. Requests are never retried
here: whoever asks knows whether to resume, to start over or to wait.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import urlencode

try:
    import urllib3
    from urllib3.connection import HTTPConnection
    from urllib3.exceptions import (
        HTTPError,
        InvalidChunkLength,
        NewConnectionError,
        ProtocolError,
        ReadTimeoutError,
        SSLError,
    )
    from urllib3.exceptions import (
        TimeoutError as ConnectTimeout,
    )
except ImportError:  # Only the bundle brings it, and only what runs from the bundle uses what is here.
    pass

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_error import (
    ApiError,
    Fault,
    fault_of_status,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.credentials import Access, Credentials
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.server_ring import ServerRing
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.kubeconfig import KubeconfigError

# A dead address must not hold up the next one for long: three of them and the pauses between fit into 30 s.
CONNECT_SECONDS = 3.0
# Time between two pieces of an answer; a slow server that keeps sending is given all the time it needs.
READ_SECONDS = 30.0
# A peer that vanished without a word (power, cable, firewall) is found out by the kernel in about half a minute.
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_MAX_MESSAGE = 300
_MAX_ERROR_BODY = 64 * 1024
_MAX_RETRY_AFTER = 300.0
_CONTENT_TYPES = {"POST": "application/json", "PATCH": "application/merge-patch+json"}

if TYPE_CHECKING:
    Pool = Union[urllib3.HTTPConnectionPool, urllib3.HTTPSConnectionPool]


class Stream:
    """An open answer of a watch, read piece by piece."""

    def __init__(self, response: urllib3.BaseHTTPResponse, server: str) -> None:
        self._response = response
        self.server = server

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes as they arrive until the server ends the stream.

        Raises:
            ApiError: it broke off, fell silent, or is no HTTP.
        """
        with translated(self.server):
            yield from self._response.stream(256 * 1024, decode_content=False)

    def abort(self) -> None:
        """End a read that waits in another thread."""
        # RuntimeError, ValueError: it has ended by itself, and the socket with it.
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            self._response.shutdown()

    def close(self) -> None:
        """Give the connection up."""
        with contextlib.suppress(OSError, HTTPError):
            self._response.close()


class ApiClient:
    """Sends requests to the current server of the ring. Safe for several threads."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._lock = threading.Lock()
        self._ring: ServerRing | None = None
        self._pools: dict[str, Pool] = {}
        self._generation = 0
        self._servers: tuple[str, ...] = ()

    def failed(self, server: str) -> bool:
        """Note that a server failed; return whether another one deserves a try at once."""
        return self._ring.failed(server) if self._ring is not None and server else False

    def worked(self, server: str) -> None:
        """Note that a server gave a complete answer."""
        if self._ring is not None:
            self._ring.worked(server)

    @property
    def credentials_problem(self) -> str:
        """Return why renewed credentials are not in use, or "" if all is well."""
        return self._credentials.problem

    @property
    def credentials(self) -> Credentials:
        """Return what requests are authorized with."""
        return self._credentials

    def get_json(self, path: str, query: Mapping[str, str]) -> tuple[dict[str, Any], str]:
        """Return a decoded answer and the server that gave it. Raises ApiError."""
        response, server = self._open("GET", path, query)
        try:
            with translated(server):
                body = response.read(decode_content=False)
                response.release_conn()
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ApiError(Fault.GARBAGE, f"GET {path}: the answer is not JSON: {error}", server) from error
        except ApiError:
            response.close()
            raise
        if not isinstance(document, dict):
            raise ApiError(Fault.GARBAGE, f"GET {path}: the answer is no JSON object", server)
        self.worked(server)
        return document, server

    def send_json(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """POST an object, or PATCH one by a merge patch. Raises ApiError."""
        response, server = self._open(method, path, {}, json.dumps(body).encode())
        with translated(server):
            response.drain_conn()
            response.release_conn()
        self.worked(server)

    def stream(self, path: str, query: Mapping[str, str], quiet_seconds: float) -> Stream:
        """Open a watch; once it is open, so many seconds of silence end it. Raises ApiError."""
        response, server = self._open("GET", path, query)
        # A server that closes the connection behind its answer has taken the socket from it; there READ_SECONDS stay.
        connection = getattr(response, "connection", None)
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(quiet_seconds)
        return Stream(response, server)

    def _open(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None = None
    ) -> tuple[urllib3.BaseHTTPResponse, str]:
        try:
            access = self._credentials.access()
        except KubeconfigError as error:
            raise ApiError(Fault.CONFIGURATION, str(error)) from error
        server, pool = self._pool(access)
        headers = {"Accept": "application/json", "User-Agent": "kproxyd"}
        if access.authorization:
            headers["Authorization"] = access.authorization
        if body is not None:
            headers["Content-Type"] = _CONTENT_TYPES[method]
        with translated(server):
            response = pool.request(
                method,
                f"{path}?{urlencode(query)}" if query else path,
                body=body,
                headers=headers,
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
            )
        if response.status not in (200, 201):
            raise _refusal(response, f"{method} {path}", server)
        return response, server

    def _pool(self, access: Access) -> tuple[str, Pool]:
        with self._lock:
            if access.generation != self._generation:
                # Open watches keep their connections; new requests prove the new identity.
                self._pools = {}
                self._generation = access.generation
            if self._ring is None:
                self._ring = ServerRing(access.servers)
            elif access.servers != self._servers:
                self._ring.replace(access.servers)
            self._servers = access.servers
            server = self._ring.current
            if server not in self._pools:
                self._pools[server] = _connection_pool(server, access)
            return server, self._pools[server]


def _connection_pool(server: str, access: Access) -> Pool:
    url = urllib3.util.parse_url(server)
    host = str(url.host).strip("[]")
    return urllib3.HTTPSConnectionPool(
        host,
        url.port or 443,
        maxsize=8,
        ssl_context=access.tls,
        socket_options=[*HTTPConnection.default_socket_options, *_KEEP_ALIVE],
        server_hostname=access.server_name or None,
    )


def _refusal(response: urllib3.BaseHTTPResponse, request: str, server: str) -> ApiError:
    """Return the error for an answer that is no success, in the server's own words as far as it has any."""
    message = ""
    try:
        with translated(server):
            body = response.read(_MAX_ERROR_BODY, decode_content=False)
        document = json.loads(body)
        message = str(document["message"])[:_MAX_MESSAGE]
    except (ApiError, ValueError, KeyError, TypeError):
        pass  # the code says enough
    finally:
        response.close()
    asked = retry_after(response.headers.get("Retry-After", ""))
    what = f"{request}: HTTP {response.status}" + (f" {message}" if message else "")
    return ApiError(fault_of_status(response.status), what, server, asked)


def retry_after(value: str) -> float:
    """Return the seconds of a Retry-After header, within reason; 0 for none, a date, or nonsense."""
    try:
        seconds = float(value)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), _MAX_RETRY_AFTER) if math.isfinite(seconds) else 0.0


@contextlib.contextmanager
def translated(server: str) -> Iterator[None]:
    """Turn what the network and urllib3 raise into ApiError."""
    try:
        yield
    except (SSLError, ssl.SSLError) as error:
        raise ApiError(Fault.TLS, f"TLS failed: {_words(error)}", server) from error
    except ReadTimeoutError as error:
        raise ApiError(Fault.TIMEOUT, "no answer in time", server) from error
    except NewConnectionError as error:
        raise ApiError(Fault.CONNECT, f"cannot connect: {_words(error)}", server) from error
    except ConnectTimeout as error:
        raise ApiError(Fault.CONNECT, "no answer to the connection attempt", server) from error
    except InvalidChunkLength as error:
        raise ApiError(Fault.GARBAGE, "the answer is not framed as HTTP", server) from error
    except ProtocolError as error:
        raise ApiError(*_protocol_fault(error), server) from error
    except (HTTPError, ValueError) as error:
        raise ApiError(Fault.GARBAGE, f"the answer is no HTTP: {_words(error)}", server) from error
    except OSError as error:
        raise ApiError(Fault.CLOSED, f"connection lost: {error}", server) from error


def _protocol_fault(error: ProtocolError) -> tuple[Fault, str]:
    if any(isinstance(cause, InvalidChunkLength) for cause in error.args):
        return Fault.GARBAGE, "the answer is not framed as HTTP"
    cause = error.__cause__ or error.__context__
    name = type(cause).__name__
    if name in ("BadStatusLine", "LineTooLong", "UnknownProtocol"):
        return Fault.GARBAGE, "the answer is no HTTP"
    return Fault.CLOSED, f"connection lost in the middle of the answer: {_words(error)}"


def _words(error: BaseException) -> str:
    """Return the innermost reason, which is what a person can act on."""
    reason = getattr(error, "reason", None)
    while isinstance(reason, BaseException):
        error, reason = reason, getattr(reason, "reason", None)
    return str(error)[:_MAX_MESSAGE]
