# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""List and watch one resource for ever: the API server's truth, one event after another.

The contract with the API server is "Kubernetes API Concepts: Efficient detection of changes". In short: a list is the
whole truth at a version; a watch continues from it; bookmarks move the version; 410, as an answer or as an event, means
that the version is forgotten, and only a new list helps. Everything else that goes wrong is retried from the version
reached, with growing pauses, on the next server if the failure is the server's.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import ApiObject, identity, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_client import ApiClient, Stream
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_error import (
    ApiError,
    Fault,
    fault_of_status,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.backoff import Backoff
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import (
    Deleted,
    Refused,
    Replaced,
    Sink,
    SourceState,
    Upserted,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.resources import Resource
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.watch_stream import (
    NotAWatch,
    WatchEvent,
    decode,
    lines,
    version_of,
)

PAGE = 500
# A list whose continue token expires this often is asked for in one piece, so that it ends.
MAX_EXPIRIES = 3
# A watch is asked for a random time in this range, so that watches spread over servers, as with client-go.
WATCH_SECONDS = (300, 600)
# A watch that tells nothing for so long is opened anew from the version reached: a server whose process hangs, or one
# behind a load balancer that has not noticed its end, keeps a connection alive, and only a new request shows it.
# Bookmarks come about once a minute, but only where anything of the kind has changed since the server started.
QUIET_SECONDS = 90.0
# A watch that ends sooner and without one event has not worked.
SHORT_WATCH_SECONDS = 1.0
# A server that tells nothing at all for so long, in whatever many watches, may have lost its history (a restored etcd
# counts versions anew) and wait for our version to come; only a list can tell.
SILENT_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 10.0
# An optional resource that the server does not know comes with an upgrade, if ever.
ABSENT_PAUSE_SECONDS = 300.0


@dataclass
class Counters:
    """What happened so far, for metrics. Written by the reflector's thread only.

    last_success: Unix time of the last proof that we are in step: a list, an event, a bookmark, a watch that ended in
    order, or that one which had told nothing could be opened again; 0 before the first.
    """

    lists: int = 0
    relists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    reconnects: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    last_success: float = 0.0


class Reflector:
    """Keeps one resource in step, in a thread of its own.

    Args:
        resource: what to read.
        client: how to read it; shared by all reflectors.
        sink: where events go.
        source: random numbers for pauses and watch lengths.
    """

    def __init__(self, resource: Resource, client: ApiClient, sink: Sink, source: random.Random | None = None) -> None:
        self.resource = resource
        self.counters = Counters()
        self._client = client
        self._sink = sink
        self._random = source or random.Random()
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS, self._random)
        self._selectors = resource.selectors()
        self._version = ""  # continue from here; empty: list
        self._listed = False
        self._worked_since_gone = True
        self._lived = False  # the last watch worked for a while before it failed
        self._heard = 0.0  # monotonic time of the last list, event or bookmark
        self._quiet = False  # the last watch was given up because it told nothing
        self._state: SourceState | None = None
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=self._run, name=f"reflector-{resource.kind}", daemon=True)

    @property
    def synced(self) -> bool:
        """Return whether a first complete list was delivered."""
        return self._listed

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; join() waits for it."""
        self._stopping.set()
        stream = self._stream
        if stream is not None:
            stream.abort()

    def join(self, timeout: float) -> None:
        """Wait for the thread's end; it may first have to give up a connection attempt."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
                pause = 0.0
            except ApiError as error:
                if self._stopping.is_set():
                    return
                pause = self._after(error)
            except Exception as error:  # a reflector that died silently would freeze the rules
                self._version = ""
                pause = self._after(ApiError(Fault.INTERNAL, f"unexpected {error!r}"))
            self._stopping.wait(pause)

    # Failures

    def _after(self, error: ApiError) -> float:
        """Note a failure and return how many seconds to wait before going on."""
        fault = error.fault
        self.counters.errors[fault.value] = self.counters.errors.get(fault.value, 0) + 1
        if fault is Fault.GONE:
            # Ordinary after a long pause, so list at once; but a server that says so time and again has to be spared.
            self._version = ""
            at_once, self._worked_since_gone = self._worked_since_gone, False
            return 0.0 if at_once else self._backoff.next()
        if fault is Fault.BAD_REQUEST and "fieldSelector" in self._selectors and self.resource.kind == "Service":
            # Services are selectable by spec.clusterIP since Kubernetes 1.31; what it cuts off is left out later.
            del self._selectors["fieldSelector"]
            return 0.0
        if self.resource.optional and fault in (Fault.NOT_FOUND, Fault.FORBIDDEN):
            return self._without(error)
        if fault is Fault.CLOSED and self._lived:
            # Load balancers close what is quiet for a minute; that is no sign of a sick server, and no news.
            self._lived = False
            self.counters.reconnects += 1
            return 0.0
        pause = self._backoff.next()
        if not (fault.blames_server and self._client.failed(error.server)):
            pause = max(pause, error.retry_after)
        elif fault is not Fault.THROTTLED:  # who is throttled is not to throw itself upon the next one
            pause = 0.0
        self.counters.reconnects += 1
        self._tell(False, error.server, f"{error}; trying again")
        return pause

    def _without(self, error: ApiError) -> float:
        """Go on without an optional resource: there is none as far as we can know."""
        self._version = ""
        if not self._listed:
            self._listed = True
            self._sink.put(Replaced(self.resource.kind, ()))
        self._tell(True, error.server, f"going on without: {error}")
        return ABSENT_PAUSE_SECONDS if error.fault is Fault.NOT_FOUND else self._backoff.next() * 10

    def _tell(self, connected: bool, server: str, detail: str = "") -> None:
        state = SourceState(self.resource.kind, connected, server, detail or self._client.credentials_problem)
        # A failure is told every time, so that it can be counted; that all is well, once.
        if detail or state != self._state:
            self._state = state
            self._sink.put(state)

    def _succeeded(self) -> None:
        self.counters.last_success = time.time()

    # Lists

    def _list(self) -> None:
        """Deliver the whole truth, read page by page. Raises ApiError."""
        expiries = 0
        while True:
            try:
                objects, refusals, version, server = self._pages(PAGE if expiries < MAX_EXPIRIES else 0)
                break
            except ApiError as error:
                if error.fault is not Fault.GONE or expiries >= MAX_EXPIRIES:
                    raise
                expiries += 1
        self.counters.lists += 1
        if self._listed:
            self.counters.relists += 1
        self._version = version
        self._heard = time.monotonic()
        self._listed = True
        self._succeeded()
        self._sink.put(Replaced(self.resource.kind, tuple(objects), tuple(refusals)))
        self._tell(True, server)

    def _pages(self, limit: int) -> tuple[list[ApiObject], list[Refusal], str, str]:
        objects: list[ApiObject] = []
        refusals: list[Refusal] = []
        query = dict(self._selectors)
        if limit:
            query["limit"] = str(limit)
        while True:
            page, server = self._client.get_json(self.resource.path, query)
            items, metadata = page.get("items"), page.get("metadata")
            # "items" of an empty list may be null.
            if not isinstance(metadata, Mapping) or not isinstance(items, (list, type(None))) or "items" not in page:
                raise ApiError(Fault.GARBAGE, f"GET {self.resource.path}: the answer is no list", server)
            api_version = page.get("apiVersion")
            for item in items or ():
                # Items of a typed list carry neither kind nor version.
                if isinstance(item, dict):
                    item.setdefault("kind", self.resource.kind)
                    item.setdefault("apiVersion", api_version)
                parsed = _parse(item)
                if isinstance(parsed, Refusal):
                    refusals.append(parsed)
                elif parsed is not None:
                    objects.append(parsed)
            if self._stopping.is_set():
                raise ApiError(Fault.CLOSED, "stopping", server)
            token = metadata.get("continue")
            if not token:
                version = metadata.get("resourceVersion")
                if not isinstance(version, str) or not version:
                    raise ApiError(Fault.GARBAGE, f"GET {self.resource.path}: a list without version", server)
                return objects, refusals, version, server
            query["continue"] = str(token)

    # Watches

    def _watch(self) -> None:
        """Deliver changes until the server ends the watch in order or is quiet. Raises ApiError for every other end."""
        seconds = self._random.randint(*WATCH_SECONDS)
        query = {
            **self._selectors,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        self._lived = False
        stream = self._client.stream(self.resource.path, query, QUIET_SECONDS)
        self._stream = stream
        opened = time.monotonic()
        self.counters.watches += 1
        seen = 0
        if self._quiet:
            self._quiet = False
            self._succeeded()
        try:
            if self._stopping.is_set():
                return
            self._tell(True, stream.server)
            for line in lines(stream.pieces()):
                if line.strip():
                    self._handle(decode(line), stream.server)
                    seen += 1
                    if seen == 1:
                        self._proven(stream.server)
        except NotAWatch as error:
            raise ApiError(Fault.GARBAGE, f"watch {self.resource.path}: {error}", stream.server) from error
        except ApiError as error:
            if error.fault is not Fault.TIMEOUT:
                raise
            self._quiet = True
        finally:
            self._stream = None
            stream.close()
            self._lived = time.monotonic() - opened >= SHORT_WATCH_SECONDS
        if not (seen or self._quiet or self._lived):
            raise ApiError(Fault.CLOSED, f"watch {self.resource.path}: ended at once", stream.server)
        self._proven(stream.server)
        if time.monotonic() - self._heard >= SILENT_SECONDS:
            self._version = ""
        elif not self._quiet:
            self._succeeded()

    def _proven(self, server: str) -> None:
        """Note that a watch works."""
        self._worked_since_gone = True
        self._backoff.reset()
        self._client.worked(server)

    def _handle(self, event: WatchEvent, server: str) -> None:
        if event.type == "ERROR":
            raise _error_event(event.object, server)
        version = version_of(event.object)
        if event.type == "BOOKMARK":
            self.counters.bookmarks += 1
        else:
            self.counters.events += 1
            received = time.monotonic()
            if event.type == "DELETED":
                self._sink.put(Deleted(*_deleted(event.object, self.resource.kind), received))
            else:
                parsed = _parse(event.object)
                if isinstance(parsed, Refusal):
                    self._sink.put(Refused(parsed, received))
                elif parsed is not None:
                    self._sink.put(Upserted(parsed, received))
        self._version = version
        self._heard = time.monotonic()
        self._succeeded()


def _parse(manifest: Any) -> ApiObject | Refusal | None:
    """Return the object, or why it cannot be used; nothing an object holds may end the reflector."""
    try:
        return parse(manifest)
    except Refusal as refusal:
        return refusal
    except (TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
        kind, namespace, name = identity(manifest)
        return Refusal(kind or "document", namespace, name or "?", f"cannot be read: {error!r}")


def _deleted(content: Mapping[str, Any], kind: str) -> tuple[str, str, str]:
    _kind, namespace, name = identity({**content, "kind": kind})
    if not name:
        raise NotAWatch("a deleted object without a name")
    return kind, namespace, name


def _error_event(status: Mapping[str, Any], server: str) -> ApiError:
    """Return the error an ERROR event stands for; its object is a Status and of no watched kind."""
    code = status.get("code")
    message = str(status.get("message", ""))[:300]
    if status.get("reason") in ("Expired", "Gone"):
        return ApiError(Fault.GONE, f"watch: {message}", server)
    fault = fault_of_status(code) if isinstance(code, int) and code >= 400 else Fault.SERVER
    return ApiError(fault, f"watch: ERROR event {code} {message}", server)
