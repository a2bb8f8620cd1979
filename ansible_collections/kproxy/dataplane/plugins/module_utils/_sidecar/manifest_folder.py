# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The objects of a folder of manifests: file by file, each with its last good content. Reads no files itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpoints import ENDPOINTS, needless
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import (
    ApiObject,
    expand,
    identity,
    kind_of,
    parse,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import KINDS
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.manifests import SUFFIXES, parse_bytes
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.unconnected import unconnected

Identity = tuple[str, str, str]  # kind, namespace, name
MAX_TOLD = 20


def is_manifest(name: str) -> bool:
    """Return whether a file name in the folder counts; editors' temporary and backup files do not."""
    return name.endswith(SUFFIXES) and not name.startswith((".", "#"))


class Difference(NamedTuple):
    """What a reading of the folder changed."""

    upserted: tuple[ApiObject, ...]
    deleted: tuple[Identity, ...]
    refused: tuple[Refusal, ...]


class _File(NamedTuple):
    objects: dict[Identity, ApiObject]
    refusals: dict[Identity, Refusal]


class ManifestFolder:
    """What the files say together, and what of it was reported already.

    A file that cannot be decoded costs only itself: what it last said stays in force. An object in two files is taken
    from the first in name order; the other is refused with both names. A bad object is refused and its last good
    version stays in force as long as its file names it.
    """

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self.problems: dict[str, str] = {}  # file name -> why its newest content is not in use
        self._reported: dict[Identity, ApiObject] = {}
        self._reported_refusals: dict[Identity, str] = {}
        self._told: tuple[dict[Identity, ApiObject], tuple[str, ...]] | None = None  # for which objects, what

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the files in use."""
        return tuple(self._files)

    def holds(self, kind: str) -> bool:
        """Return whether there is an object of a kind, as last reported."""
        return any(key[0] == kind for key in self._reported)

    def unconnected(self) -> tuple[str, ...]:
        """Return which slices and Services, as last reported, lack one another; the first of them if they are many."""
        objects, told = self._reported, self._told
        if told is None or told[0] is not objects:
            found = unconnected(objects.values())
            more = [f"{len(found) - MAX_TOLD} more Services or EndpointSlices lack one another"]
            told = self._told = (objects, tuple(found[:MAX_TOLD] + more * (len(found) > MAX_TOLD)))
        return told[1]

    def put(self, name: str, content: bytes) -> None:
        """Take a file's new content; if it cannot be decoded, `problems` says why."""
        try:
            documents = parse_bytes(name, content)
        except SourceError as error:
            self.problems[name] = str(error)
            return
        self.problems.pop(name, None)
        self._files[name] = self._read(name, documents)

    def unreadable(self, name: str, reason: str) -> None:
        """Note that a file cannot be read at all; what it last said stays."""
        self.problems[name] = f"manifest {name} cannot be read: {reason}"

    def drop(self, name: str) -> None:
        """Forget a file that is gone."""
        self._files.pop(name, None)
        self.problems.pop(name, None)

    def _read(self, name: str, documents: Iterable[Any]) -> _File:
        before = self._files.get(name, _File({}, {}))
        read = _File({}, {})
        for number, manifest in enumerate((m for document in documents for m in expand(document)), start=1):
            try:
                parsed = parse(manifest)
            except Refusal as refusal:
                key = identity(manifest) if isinstance(manifest, dict) else ("", "", "")
                # Nameless ones must not hide each other.
                named = refusal.name if key[2] else f"{number} of {name}"
                refused = Refusal(refusal.kind, refusal.namespace, named, f"{refusal.reason} ({name})")
                read.refusals[refused.identity] = refused
                if key in before.objects and key not in read.objects:
                    read.objects[key] = before.objects[key]
                continue
            if parsed is None:
                continue
            key = identity(manifest)
            if key in read.objects and key not in read.refusals:
                read.refusals[key] = Refusal(*key, f"is twice in {name}; the first is used")
                continue
            # An equal value keeps its identity, so that unchanged files cost next to nothing in difference().
            known = before.objects.get(key)
            read.objects[key] = known if known == parsed and known is not None else parsed
        return read

    def _wanted(self) -> tuple[dict[Identity, ApiObject], dict[Identity, Refusal]]:
        objects: dict[Identity, ApiObject] = {}
        refusals: dict[Identity, Refusal] = {}
        origin: dict[Identity, str] = {}
        for name in sorted(self._files):
            file = self._files[name]
            refusals.update(file.refusals)
            for key, obj in file.objects.items():
                first = origin.setdefault(key, name)
                if first == name:
                    objects[key] = obj
                else:
                    refusals[key] = Refusal(*key, f"is in {first} and in {name}; the one in {first} is used")
        for identified in needless(refusals.values(), objects.values()):
            del refusals[(ENDPOINTS, *identified)]
        return objects, refusals

    def everything(self) -> Iterator[tuple[str, tuple[ApiObject, ...], tuple[Refusal, ...]]]:
        """Yield all objects and refusals by kind of object, and count them as reported."""
        objects, refusals = self._wanted()
        self._reported = objects
        self._reported_refusals = {key: str(refusal) for key, refusal in refusals.items()}
        for kind in KINDS:
            yield (
                kind,
                tuple(obj for obj in objects.values() if kind_of(obj) == kind),
                # What has no kind of ours has to be told under some kind.
                tuple(
                    r for key, r in refusals.items() if key[0] == kind or (kind == "Service" and key[0] not in KINDS)
                ),
            )

    def difference(self) -> Difference:
        """Return what changed since the last report, and count it as reported."""
        objects, refusals = self._wanted()
        upserted = []
        for key, obj in objects.items():
            known = self._reported.get(key)
            if known is not obj and known != obj:
                upserted.append(obj)
        told = {key: str(refusal) for key, refusal in refusals.items()}
        refused = tuple(refusal for key, refusal in refusals.items() if self._reported_refusals.get(key) != told[key])
        # A refusal that is no longer true is taken back by saying what is: the object, or that there is none.
        withdrawn = [key for key in self._reported_refusals if key not in told]
        upserted += [objects[key] for key in withdrawn if key in objects and objects[key] is self._reported.get(key)]
        gone = dict.fromkeys(key for key in (*self._reported, *withdrawn) if key not in objects and key not in told)
        self._reported, self._reported_refusals = objects, told
        return Difference(tuple(upserted), tuple(gone), refused)
