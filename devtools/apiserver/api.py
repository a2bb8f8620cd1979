"""Kubernetes API semantics over the store: which answer a request gets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any

from devtools.apiserver.http import HttpRequest, HttpResponse
from devtools.apiserver.resources import RESOURCES, ResourceType, Target, by_kind
from devtools.apiserver.selectors import BadSelector, field_selector, label_selector, supported_fields
from devtools.apiserver.status import ApiStatus
from devtools.apiserver.store import Entry, Key, Selection, Store, encode, watch_event, watch_line

MAX_SNAPSHOTS = 256
MERGE_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
APPLY_PATCH = "application/apply-patch+yaml"
VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-standin", "platform": "linux/amd64"}


def verb_of(request: HttpRequest, target: Target) -> str:
    """Return the RBAC verb of a request."""
    if request.method == "GET":
        if request.query.get("watch") in ("1", "true"):
            return "watch"
        return "get" if target.name else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "")


def merge_patch(current: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _continue_token(snapshot_id: str, offset: int, version: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([snapshot_id, offset, version]).encode()).decode()


class Api:
    """Answers requests; lives in the server's event loop."""

    def __init__(self, store: Store, *, bookmark_seconds: float, absent_groups: frozenset[str] = frozenset()) -> None:
        self.store = store
        self.bookmark_seconds = bookmark_seconds
        self.absent_groups = absent_groups
        self._snapshots: OrderedDict[str, list[Entry]] = OrderedDict()
        self._watchers: set[asyncio.Event] = set()
        self.bookmark_round = 0

    def expire_continue_tokens(self) -> None:
        """Make every outstanding continue token answer 410."""
        self._snapshots.clear()

    def forget_history(self) -> None:
        """Make every watch from a version before now answer 410."""
        for resource in RESOURCES:
            self.store.collection(resource).forget(self.store.version)

    def wake(self) -> None:
        """Let watchers look at the history again."""
        for event in self._watchers:
            event.set()

    def send_bookmarks(self) -> None:
        """Send a bookmark to every watcher that allows them, now."""
        self.bookmark_round += 1
        self.wake()

    def plain(self, request: HttpRequest) -> HttpResponse | None:
        """Answer what is no resource: health, version, discovery; None if it is something else."""
        path = request.path.rstrip("/")
        if path in ("/healthz", "/readyz", "/livez"):
            return HttpResponse(200, [b"ok"], {"Content-Type": "text/plain"})
        if path == "/version":
            return HttpResponse(200, [encode(VERSION)])
        served = [resource for resource in RESOURCES if resource.root == path and self._present(resource)]
        if served:
            body = {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": served[0].api_version,
                "resources": [{"name": r.plural, "kind": r.kind, "namespaced": r.namespaced} for r in served],
            }
            return HttpResponse(200, [encode(body)])
        return None

    def _present(self, resource: ResourceType) -> bool:
        return resource.group not in self.absent_groups

    def answer(self, request: HttpRequest, target: Target | None) -> HttpResponse:
        """Answer a request on a resource.

        Raises:
            ApiStatus: for every refusal.
        """
        if target is None or not self._present(target.resource):
            raise ApiStatus(404, "the server could not find the requested resource")
        verb = verb_of(request, target)
        if verb == "watch":
            return self._watch(request, target)
        if verb == "list":
            return self._list(request, target)
        key = (target.namespace, target.name)
        if verb == "get":
            return HttpResponse(200, [self.store.get(target.resource, key).encoded])
        entry, status = self._mutate(verb, request, target, key)
        self.wake()
        return HttpResponse(status, [entry.encoded])

    def _mutate(self, verb: str, request: HttpRequest, target: Target, key: Key) -> tuple[Entry, int]:
        store, resource = self.store, target.resource
        if verb == "delete":
            return store.delete(resource, key), 200
        try:
            manifest = request.json()
        except ValueError as error:
            raise ApiStatus(400, f"the object provided is unrecognized: {error}") from error
        if not isinstance(manifest, dict):
            raise ApiStatus(400, "the object provided is unrecognized: not a JSON object")
        if verb == "create":
            if target.name:
                raise ApiStatus(405, "the server does not allow this method on the requested resource")
            return store.create(resource, target.namespace, manifest), 201
        status = target.subresource == "status"
        if verb == "update":
            return store.replace(resource, key, manifest, status=status), 200
        if verb == "patch":
            kind = request.headers.get("content-type", "").split(";")[0]
            if kind == APPLY_PATCH and not status and key not in store.collection(resource).entries:
                return store.create(resource, target.namespace, manifest), 201
            if kind in MERGE_PATCHES or kind == APPLY_PATCH:
                merged = merge_patch(store.get(resource, key).manifest(), manifest)
                return store.replace(resource, key, merged, status=status), 200
            raise ApiStatus(415, f"the patch type {kind!r} is not supported by the stand-in; use a merge patch")
        raise ApiStatus(405, "the server does not allow this method on the requested resource")

    def apply(self, manifest: Mapping[str, Any]) -> Entry:
        """Create the object, or replace it; a status in the manifest is taken too (there is no kubelet to set it)."""
        body: dict[str, Any] = json.loads(json.dumps(manifest))
        resource = by_kind(body["apiVersion"], body["kind"])
        metadata = body["metadata"]
        metadata.pop("resourceVersion", None)
        key = (metadata.setdefault("namespace", "default") if resource.namespaced else "", metadata["name"])
        if key not in self.store.collection(resource).entries:
            entry = self.store.create(resource, key[0], body)
        else:
            entry = self.store.replace(resource, key, body)
            if "status" in manifest:
                entry = self.store.replace(resource, key, {"metadata": {}, "status": manifest["status"]}, status=True)
        self.wake()
        return entry

    def delete(self, manifest: Mapping[str, Any]) -> None:
        """Delete the object a manifest names; 404 if it is not there."""
        resource = by_kind(manifest["apiVersion"], manifest["kind"])
        metadata = manifest["metadata"]
        namespace = metadata.get("namespace", "default") if resource.namespaced else ""
        self.store.delete(resource, (namespace, metadata["name"]))
        self.wake()

    def _selection(self, request: HttpRequest, target: Target) -> Selection:
        kind = target.resource.kind
        try:
            return Selection(
                target.namespace,
                label_selector(request.query.get("labelSelector", "")),
                field_selector(request.query.get("fieldSelector", ""), supported_fields(kind)),
            )
        except BadSelector as error:
            raise ApiStatus(400, str(error)) from error

    def _list(self, request: HttpRequest, target: Target) -> HttpResponse:
        limit = int(request.query.get("limit") or 0)
        at_least = int(request.query.get("resourceVersion") or 0)
        if at_least > self.store.version:
            raise ApiStatus(504, f"Too large resource version: {at_least}, current: {self.store.version}")
        token = request.query.get("continue", "")
        if token:
            try:
                snapshot_id, offset, version = json.loads(base64.urlsafe_b64decode(token))
            except ValueError as error:
                raise ApiStatus(400, "continue key is not valid") from error
            if snapshot_id not in self._snapshots:
                raise ApiStatus(
                    410,
                    "The provided continue parameter is too old to display a consistent list result. "
                    "You can start a new list without the continue parameter.",
                )
            selected = self._snapshots[snapshot_id]
        else:
            selection = self._selection(request, target)
            snapshot = self.store.collection(target.resource).snapshot()
            selected = [entry for entry in snapshot if selection.covers(entry)]
            snapshot_id, offset, version = uuid.uuid4().hex, 0, self.store.version
        end = offset + limit if limit else len(selected)
        metadata: dict[str, Any] = {"resourceVersion": str(version)}
        if end < len(selected):
            self._snapshots[snapshot_id] = selected
            while len(self._snapshots) > MAX_SNAPSHOTS:
                self._snapshots.popitem(last=False)
            metadata["continue"] = _continue_token(snapshot_id, end, version)
            metadata["remainingItemCount"] = len(selected) - end
        resource = target.resource
        opening = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata}
        items = b",".join(entry.encoded for entry in selected[offset:end])
        return HttpResponse(200, [encode(opening)[:-1], b',"items":[', items, b"]}"])

    def _watch(self, request: HttpRequest, target: Target) -> HttpResponse:
        selection = self._selection(request, target)
        text = request.query.get("resourceVersion", "")
        collection = self.store.collection(target.resource)
        synthetic: list[bytes] = []
        if text in ("", "0"):
            version = self.store.version
            synthetic = [watch_event("ADDED", e.encoded) for e in collection.snapshot() if selection.covers(e)]
        else:
            version = int(text)
            collection.since(version)
        bookmarks = request.query.get("allowWatchBookmarks") in ("1", "true")
        seconds = float(request.query.get("timeoutSeconds") or random.uniform(300, 600))
        return HttpResponse(200, self._stream(target.resource, selection, version, synthetic, bookmarks, seconds))

    def _bookmark(self, resource: ResourceType, version: int) -> bytes:
        body = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
        }
        return watch_event("BOOKMARK", encode(body))

    async def _stream(
        self,
        resource: ResourceType,
        selection: Selection,
        version: int,
        synthetic: list[bytes],
        bookmarks: bool,
        seconds: float,
    ) -> AsyncIterator[bytes]:
        collection = self.store.collection(resource)
        wake = asyncio.Event()
        self._watchers.add(wake)
        clock = asyncio.get_running_loop().time
        ends = clock() + seconds
        next_bookmark = clock() + self.bookmark_seconds
        seen_round = self.bookmark_round
        try:
            if synthetic:
                yield b"".join(synthetic)
            while True:
                wake.clear()
                try:
                    events = collection.since(version)
                except ApiStatus as gone:
                    yield watch_event("ERROR", encode(gone.body()))
                    return
                if events:
                    version = events[-1].version
                    lines = [line for line in (watch_line(event, selection) for event in events) if line]
                    if lines:
                        yield b"".join(lines)
                    continue  # a bookmark may follow only if nothing happened while the lines were sent
                ending = clock() >= ends
                # From a version that is still to come nothing is told at all, as by the real one.
                if (
                    bookmarks
                    and version <= self.store.version
                    and (ending or clock() >= next_bookmark or seen_round != self.bookmark_round)
                ):
                    next_bookmark = clock() + self.bookmark_seconds
                    seen_round = self.bookmark_round
                    version = self.store.version
                    yield self._bookmark(resource, version)
                if ending:
                    return
                if not wake.is_set():
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(wake.wait(), max(0.0, min(ends, next_bookmark) - clock()))
        finally:
            self._watchers.discard(wake)
