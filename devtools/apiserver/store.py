"""The objects of the stand-in: resource versions, snapshots for chunked lists, and the history a watch reads.

Not thread-safe: the server calls it from its one event loop. Objects are kept encoded, because they are listed far
more often than changed: serving 10,000 Services is then joining byte strings.
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from devtools.apiserver.defaults import ServiceAllocator, default_endpoint_slice, default_service
from devtools.apiserver.resources import ResourceType
from devtools.apiserver.selectors import Matcher, fields_of
from devtools.apiserver.status import ApiStatus

Key = tuple[str, str]  # namespace, name


class Entry(NamedTuple):
    """One version of one object."""

    key: Key
    version: int
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    encoded: bytes

    def manifest(self) -> dict[str, Any]:
        decoded: dict[str, Any] = json.loads(self.encoded)
        return decoded


class HistoryEvent(NamedTuple):
    """One change; `before` and `after` are both there for a modification."""

    version: int
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True)
class Selection:
    """Which objects a request is about."""

    namespace: str
    labels: Matcher
    fields: Matcher

    def covers(self, entry: Entry | None) -> bool:
        return (
            entry is not None
            and (not self.namespace or entry.key[0] == self.namespace)
            and self.labels(entry.labels)
            and self.fields(entry.fields)
        )


def encode(manifest: Mapping[str, Any]) -> bytes:
    """Return the object as compact JSON, which is what goes over the wire."""
    return json.dumps(manifest, separators=(",", ":")).encode()


def watch_event(kind: str, body: bytes) -> bytes:
    """Return one line of a watch stream."""
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), body)


class Collection:
    """All objects of one resource type with their history."""

    def __init__(self, resource: ResourceType, history_limit: int) -> None:
        self.resource = resource
        self.entries: dict[Key, Entry] = {}
        self.history: list[HistoryEvent] = []
        self.history_limit = history_limit
        self.forgotten = 0  # versions up to this one can no longer be watched from
        self._sorted: list[Entry] | None = None

    def snapshot(self) -> list[Entry]:
        """Return all entries in key order; unchanged between two writes, so pages of one list agree."""
        if self._sorted is None:
            self._sorted = [self.entries[key] for key in sorted(self.entries)]
        return self._sorted

    def record(self, event: HistoryEvent) -> None:
        self._sorted = None
        self.history.append(event)
        if len(self.history) > self.history_limit:
            self.forget(self.history[-self.history_limit // 2].version)

    def forget(self, version: int) -> None:
        """Drop the history up to and including `version`: watches from before it get 410."""
        self.forgotten = max(self.forgotten, version)
        del self.history[: bisect_right(self.history, version, key=lambda event: event.version)]

    def since(self, version: int) -> list[HistoryEvent]:
        """Return the events after `version`; raise 410 if some of them are forgotten."""
        if version < self.forgotten:
            raise ApiStatus(410, f"too old resource version: {version} ({self.forgotten})")
        return self.history[bisect_right(self.history, version, key=lambda event: event.version) :]


class Store:
    """Every collection, one resource version counter over all of them."""

    def __init__(self, service_cidrs: list[str], *, history_limit: int = 200_000) -> None:
        self.version = 1
        self.allocator = ServiceAllocator(service_cidrs)
        self._history_limit = history_limit
        self._collections: dict[ResourceType, Collection] = {}

    def collection(self, resource: ResourceType) -> Collection:
        if resource not in self._collections:
            self._collections[resource] = Collection(resource, self._history_limit)
        return self._collections[resource]

    def all_manifests(self) -> Iterator[dict[str, Any]]:
        for collection in self._collections.values():
            for entry in collection.snapshot():
                yield entry.manifest()

    def get(self, resource: ResourceType, key: Key) -> Entry:
        entry = self.collection(resource).entries.get(key)
        if entry is None:
            raise ApiStatus(404, f'{resource.plural} "{key[1]}" not found')
        return entry

    def create(self, resource: ResourceType, namespace: str, manifest: dict[str, Any]) -> Entry:
        """Add an object with server-side defaults; 409 if it exists, 422 if a wanted address or port is taken."""
        metadata = self._metadata(resource, namespace, manifest)
        key = (metadata.get("namespace", ""), metadata["name"])
        if key in self.collection(resource).entries:
            raise ApiStatus(409, f'{resource.plural} "{key[1]}" already exists', reason="AlreadyExists")
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        metadata["generation"] = 1
        self._complete(resource, key, manifest)
        return self._write(resource, key, manifest)

    def replace(self, resource: ResourceType, key: Key, manifest: dict[str, Any], *, status: bool = False) -> Entry:
        """Put a new version of an existing object; with `status` only its status is taken, without only the rest."""
        current = self.get(resource, key).manifest()
        wanted_version = manifest.get("metadata", {}).get("resourceVersion")
        if wanted_version and wanted_version != current["metadata"]["resourceVersion"]:
            raise ApiStatus(
                409,
                f'Operation cannot be fulfilled on {resource.plural} "{key[1]}": the object has been modified; '
                "please apply your changes to the latest version and try again",
            )
        if status:
            manifest = {**current, "status": manifest.get("status", {})}
        elif "status" in current:
            manifest = {**manifest, "status": current["status"]}
        metadata = self._metadata(resource, key[0], manifest)
        for immutable in ("uid", "creationTimestamp", "generation"):
            metadata[immutable] = current["metadata"][immutable]
        if manifest.get("spec") != current.get("spec"):
            metadata["generation"] += 1
        if not status and resource.kind == "Service":
            self._keep_allocations(key, current["spec"], manifest)
        self._complete(resource, key, manifest)
        if {**manifest, "metadata": metadata} == current:
            return self.get(resource, key)
        return self._write(resource, key, manifest)

    def delete(self, resource: ResourceType, key: Key) -> Entry:
        entry = self.get(resource, key)
        self.version += 1
        manifest = entry.manifest()
        manifest["metadata"]["resourceVersion"] = str(self.version)
        last = entry._replace(version=self.version, encoded=encode(manifest))
        collection = self.collection(resource)
        del collection.entries[key]
        if resource.kind == "Service":
            self.allocator.release("/".join(key))
        collection.record(HistoryEvent(self.version, last, None))
        return last

    def _metadata(self, resource: ResourceType, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
        manifest.setdefault("apiVersion", resource.api_version)
        manifest.setdefault("kind", resource.kind)
        metadata: dict[str, Any] = manifest.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        if not metadata.get("name"):
            raise ApiStatus(422, f"{resource.kind}: metadata.name: Required value: name or generateName is required")
        if resource.namespaced:
            if not namespace:
                raise ApiStatus(400, f"{resource.kind} {metadata['name']}: an empty namespace may not be set")
            if metadata.setdefault("namespace", namespace) != namespace:
                raise ApiStatus(400, "the namespace of the object does not match the namespace on the request")
        return metadata

    def _complete(self, resource: ResourceType, key: Key, manifest: dict[str, Any]) -> None:
        if resource.kind == "Service":
            spec = manifest.setdefault("spec", {})
            default_service(spec)
            try:
                self.allocator.assign("/".join(key), spec)
            except ApiStatus:
                if key not in self.collection(resource).entries:
                    self.allocator.release("/".join(key))
                raise
        elif resource.kind == "EndpointSlice":
            default_endpoint_slice(manifest)

    @staticmethod
    def _keep_allocations(key: Key, current: Mapping[str, Any], manifest: dict[str, Any]) -> None:
        """Carry addresses and node ports over to a new spec that leaves them out, as the API server does."""
        spec = manifest.setdefault("spec", {})
        if current.get("type") == "ExternalName" or spec.get("type") == "ExternalName":
            return
        for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
            if field in current and not spec.get(field):
                spec[field] = current[field]
        if spec.get("type") in ("NodePort", "LoadBalancer"):
            node_ports = {(p["port"], p["protocol"]): p.get("nodePort") for p in current.get("ports") or []}
            for port in spec.get("ports") or []:
                held = node_ports.get((port.get("port"), port.get("protocol", "TCP")))
                if held and not port.get("nodePort"):
                    port["nodePort"] = held

    def _write(self, resource: ResourceType, key: Key, manifest: dict[str, Any]) -> Entry:
        self.version += 1
        manifest["metadata"]["resourceVersion"] = str(self.version)
        entry = Entry(
            key,
            self.version,
            manifest["metadata"].get("labels") or {},
            fields_of(resource.kind, manifest),
            encode(manifest),
        )
        collection = self.collection(resource)
        before = collection.entries.get(key)
        collection.entries[key] = entry
        collection.record(HistoryEvent(self.version, before, entry))
        return entry


def watch_line(event: HistoryEvent, selection: Selection) -> bytes | None:
    """Return what a watcher with this selection sees of a change; None if nothing.

    An object that begins or ceases to match appears as ADDED or DELETED, as from a real API server.
    """
    was, now = selection.covers(event.before), selection.covers(event.after)
    if now:
        assert event.after is not None
        return watch_event("MODIFIED" if was else "ADDED", event.after.encoded)
    if was:
        assert event.before is not None
        return watch_event("DELETED", event.before.encoded)
    return None
