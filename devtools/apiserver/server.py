"""The stand-in API server as a thread: listeners, connections, faults, and what tests ask it afterwards."""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from devtools.apiserver import netns
from devtools.apiserver.api import Api, verb_of
from devtools.apiserver.auth import ADMIN_GROUP, KUBE_PROXY, User, authenticate, authorize
from devtools.apiserver.connection import Connection
from devtools.apiserver.faults import DISTORTING, Action, Fault, FaultBook, fault_from_mapping
from devtools.apiserver.http import HttpRequest, HttpResponse
from devtools.apiserver.pki import CertificateAuthority, kubeconfig
from devtools.apiserver.resources import parse_path
from devtools.apiserver.status import ApiStatus
from devtools.apiserver.store import Store, encode

T = TypeVar("T")
DEFAULT_SERVICE_CIDRS = ("10.96.0.0/12",)
CONTROL = "/standin/"


@dataclass(frozen=True)
class RequestRecord:
    """One resource request as it came in; `at` is time.monotonic()."""

    verb: str
    resource: str
    query: Mapping[str, str]
    user: str
    port: int
    at: float


class Listener:
    """One address the server answers on; can be closed and reopened to play an API server that is down."""

    def __init__(self, server: ApiServer, address: str, port: int) -> None:
        self._server = server
        self.address = address
        self.port = port
        self._listening: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{host}:{self.port}"

    async def open_async(self) -> None:
        self._listening = await asyncio.start_server(
            self._accept, self.address, self.port, ssl=self._server.tls, backlog=256, limit=64 * 1024
        )
        self.port = self._listening.sockets[0].getsockname()[1]

    async def close_async(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        await self.drop_async()

    async def drop_async(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await Connection(reader, writer, self._server.prepare, self.port).serve()
        except asyncio.CancelledError:
            pass  # the listener was closed, or the server stopped
        finally:
            self._connections.discard(task)

    def open(self) -> None:
        """Listen (again) on the same port."""
        self._server.run(self.open_async())

    def close(self) -> None:
        """Stop listening and drop every connection: from now on connects are refused."""
        self._server.run(self.close_async())

    def drop_connections(self) -> None:
        """Close every open connection, watches too; new ones are welcome."""
        self._server.run(self.drop_async())


class ApiServer:
    """A stand-in API server; use as a context manager.

    Args:
        data: folder for certificates; kept between runs, so clients stay valid. None: a temporary folder.
        listen: addresses to answer on, as (address, port); port 0 picks a free one.
        network_namespace: name under /run/netns, or path, of the namespace to listen in; None: the caller's.
        tokens: bearer token to user; client certificates signed by the authority always work.
        absent_groups: API groups this server does not know (404).
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        listen: Sequence[tuple[str, int]] = (("127.0.0.1", 0),),
        network_namespace: str | None = None,
        service_cidrs: Sequence[str] = DEFAULT_SERVICE_CIDRS,
        tokens: Mapping[str, User] | None = None,
        bookmark_seconds: float = 60.0,
        absent_groups: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="kp-apiserver-") if data is None else None
        self.data = Path(self._temporary.name) if self._temporary else Path(str(data))
        self.store = Store(list(service_cidrs))
        self.api = Api(self.store, bookmark_seconds=bookmark_seconds, absent_groups=frozenset(absent_groups))
        self.faults = FaultBook()
        self.tokens = dict(tokens or {})
        self.requests: list[RequestRecord] = []
        self.listeners = [Listener(self, address, port) for address, port in listen]
        self.authority = CertificateAuthority.load_or_create(self.data / "pki")
        names = ["localhost", "127.0.0.1", "::1", "kubernetes", *hosts, *(address for address, _ in listen)]
        self.tls = self._server_tls(list(dict.fromkeys(names)))
        self._network_namespace = network_namespace
        self._arrived = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_loop, name="stand-in-apiserver", daemon=True)

    def _server_tls(self, hosts: Sequence[str]) -> ssl.SSLContext:
        certificate, key = self.authority.issue("kube-apiserver", hosts=hosts).write(self.data / "pki", "apiserver")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(cadata=self.authority.pair.certificate.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    # Life

    def __enter__(self) -> ApiServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> ApiServer:
        """Listen; return once connections are accepted."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Drop every connection and end the thread."""
        if self._thread.is_alive():
            for listener in self.listeners:
                listener.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        if self._temporary:
            self._temporary.cleanup()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            if self._network_namespace is not None:
                netns.enter(self._network_namespace)
            for listener in self.listeners:
                self._loop.run_until_complete(listener.open_async())
        except BaseException as error:  # handed to the thread that called start()
            self._failure = error
            return
        finally:
            self._started.set()
        self._loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the server's loop and wait for its result."""
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the server is not running; start() it first")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the server's loop, where store and API may be touched."""

        async def wrapped() -> T:
            return function()

        result: T = self.run(wrapped())
        return result

    # What tests and tools do with it

    @property
    def url(self) -> str:
        return self.listeners[0].url

    @property
    def urls(self) -> list[str]:
        return [listener.url for listener in self.listeners]

    def kubeconfig(self, user: str = KUBE_PROXY, *, groups: Sequence[str] = (), server: str = "") -> str:
        """Return a kubeconfig with a fresh client certificate for the user."""
        organizations = tuple(groups) or (("system:masters",) if user == "admin" else ("system:node-proxier",))
        pair = self.authority.issue(user, organizations=organizations)
        return kubeconfig(server or self.url, self.authority.pair.certificate, user=user, pair=pair)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Create or replace objects, status included."""
        self.call(lambda: [self.api.apply(manifest) for manifest in manifests])

    def delete(self, *manifests: Mapping[str, Any]) -> None:
        """Delete objects by what the manifests name."""

        def delete_all() -> None:
            for manifest in manifests:
                self.api.delete(manifest)

        self.call(delete_all)

    def inject(self, action: Action, **selectors: Any) -> Fault:
        """Make the next matching requests go wrong; see faults.Fault for the selectors."""
        fault = Fault(action, **selectors)
        self.call(lambda: self.faults.add(fault))
        return fault

    def heal(self) -> None:
        """Withdraw all faults."""
        self.call(self.faults.clear)

    def expire_continue_tokens(self) -> None:
        self.call(self.api.expire_continue_tokens)

    def forget_history(self) -> None:
        self.call(self.api.forget_history)

    def send_bookmarks(self) -> None:
        self.call(self.api.send_bookmarks)

    def wait_for_requests(self, enough: Callable[[Sequence[RequestRecord]], bool], timeout: float = 60.0) -> None:
        """Wait until the request log satisfies `enough`; TimeoutError shows the log."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: enough(self.requests), timeout):
                raise TimeoutError(f"requests so far: {self.requests}")

    # Requests

    async def prepare(
        self, request: HttpRequest, tls: ssl.SSLObject | None, port: int
    ) -> tuple[HttpResponse, Action | None]:
        """Return the right answer to a request, and the misbehaviour ordered for it, if any."""
        try:
            plain = self.api.plain(request)
            if plain is not None:
                return plain, None
            user = authenticate(request.headers, self.tokens, tls)
            if request.path.startswith(CONTROL):
                return self._control(request, user), None
            target = parse_path(request.path)
            verb = verb_of(request, target) if target else ""
            plural = target.resource.plural if target else ""
            with self._arrived:
                self.requests.append(RequestRecord(verb, plural, request.query, user.name, port, time.monotonic()))
                self._arrived.notify_all()
            action = self.faults.take(verb, plural, continued="continue" in request.query, port=port)
            if target is not None:
                authorize(user, verb, target.resource.group, target.resource.plural)
            if action is not None and not isinstance(action, DISTORTING):
                return HttpResponse(200, []), action
            return self.api.answer(request, target), action
        except ApiStatus as status:
            return refusal(status), None

    def _control(self, request: HttpRequest, user: User) -> HttpResponse:
        """Serve fault injection to other processes: POST or DELETE /standin/faults, POST /standin/{expire,forget}."""
        if ADMIN_GROUP not in user.groups:
            raise ApiStatus(403, "only members of system:masters may order faults")
        order = (request.method, request.path[len(CONTROL) :])
        if order == ("POST", "faults"):
            self.faults.add(fault_from_mapping(json.loads(request.body)))
        elif order == ("DELETE", "faults"):
            self.faults.clear()
        elif order == ("POST", "expire"):
            self.api.expire_continue_tokens()
        elif order == ("POST", "forget"):
            self.api.forget_history()
            self.api.wake()
        else:
            raise ApiStatus(404, "no such control")
        return HttpResponse(200, [b"{}"])


def refusal(status: ApiStatus) -> HttpResponse:
    """Return the HTTP form of a Status."""
    headers = {} if status.retry_after is None else {"Retry-After": str(status.retry_after)}
    return HttpResponse(status.code, [encode(status.body())], headers)
