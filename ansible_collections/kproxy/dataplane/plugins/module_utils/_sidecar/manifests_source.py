# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A folder of manifests as a source, watched with inotify: demos, air-gapped nodes and tests need no API server."""

from __future__ import annotations

import os
import select
import stat
import threading
import time

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import inotify
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import (
    Deleted,
    Refused,
    Replaced,
    Sink,
    SourceState,
    Upserted,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.manifest_folder import (
    ManifestFolder,
    is_manifest,
)

KIND = "manifests"
_CONTENT = inotify.MODIFY | inotify.CLOSE_WRITE | inotify.CREATE | inotify.DELETE
_MOVES = inotify.MOVED_FROM | inotify.MOVED_TO
_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_GONE = _SELF | inotify.IGNORED

_Signature = tuple[int, int, int]


class ManifestsSource:
    """Reads *.yaml, *.yml and *.json directly inside a folder, now and whenever they change.

    A file that is being written is read when its writer closes it, so half a file is never taken for a whole one. While
    the folder does not exist (yet, or any more) nothing changes: what is in force stays.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._manifests = ManifestFolder()
        self._signatures: dict[str, _Signature] = {}
        self._being_written: set[str] = set()
        self._listed = False
        self._state: SourceState | None = None
        self._sink: Sink | None = None
        self._inotify: inotify.Inotify | None = None
        self._folder_watch = -1
        self._parent_watch = -1
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="manifests", daemon=True)

    @property
    def synced(self) -> bool:
        """Return whether the folder was read once."""
        return self._listed

    def start(self, sink: Sink) -> None:
        """Begin to read and watch in a thread of its own; returns at once. Raises OSError without inotify."""
        self._sink = sink
        self._inotify = inotify.Inotify()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if self._inotify is None:
            return
        os.write(self._wake_writer, b"\0")
        self._thread.join()
        self._inotify.close()
        self._inotify = None
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def problems(self) -> tuple[str, ...]:
        """Return what of the manifests serves nobody."""
        if not self._listed:
            return ()
        if not self._manifests.holds("Service"):
            return (f"folder {self._folder} holds no Service, so nothing is served: write manifests into it",)
        return self._manifests.unconnected()

    def _notifier(self) -> inotify.Inotify:
        if self._inotify is None:
            raise AssertionError("used before start()")
        return self._inotify

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._notifier().fileno(), select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        self._arm()
        while True:
            ready = [handle for handle, _mask in poll.poll()]
            if self._wake_reader in ready:
                return
            self._take(self._notifier().read())

    # Watching

    def _arm(self) -> None:
        """Watch the folder, or for its coming the nearest parent there is, and read what is there."""
        while True:
            try:
                self._folder_watch = self._notifier().watch(self._folder, _CONTENT | _MOVES | _SELF)
            except (FileNotFoundError, NotADirectoryError):
                if self._watch_parent():
                    self._tell(False, f"folder {self._folder} does not exist; what is in force stays until it does")
                    return
                continue
            except OSError as error:
                self._tell(False, f"folder {self._folder} cannot be watched: {error}")
                self._watch_parent()
                return
            self._release_parent()
            self._being_written.clear()
            self._read()
            return

    def _watch_parent(self) -> bool:
        """Watch the nearest existing parent; False if the folder appeared meanwhile."""
        self._release_parent()
        parent = os.path.dirname(self._folder)
        while True:
            try:
                self._parent_watch = self._notifier().watch(parent, inotify.CREATE | inotify.MOVED_TO | _SELF)
                break
            except OSError:
                if parent == os.path.dirname(parent):
                    raise
                parent = os.path.dirname(parent)
        # Look again, now that nothing can slip by: the next part of the path may have come before the watch.
        step = os.path.join(parent, os.path.relpath(self._folder, parent).split(os.sep, maxsplit=1)[0])
        return not os.path.isdir(step)

    def _release_parent(self) -> None:
        if self._parent_watch >= 0:
            self._notifier().forget(self._parent_watch)
            self._parent_watch = -1

    def _take(self, events: list[inotify.FileEvent]) -> None:
        """Note who writes, then look at the folder once for all events."""
        rearm = look = False
        for event in events:
            if event.mask & inotify.OVERFLOW:
                self._being_written.clear()
                look = True
            elif event.watch == self._folder_watch:
                if event.mask & _GONE:
                    self._notifier().forget(self._folder_watch)  # it would follow a folder that was moved away
                    self._folder_watch = -1
                    rearm = True
                elif is_manifest(event.name) or event.mask & _MOVES:
                    # A move may be a symbolic link that others lead through, as in a mounted ConfigMap.
                    look = self._note(event) or look
            elif event.watch == self._parent_watch:
                rearm = rearm or self._folder_watch < 0
        if rearm:
            self._arm()
        elif look:
            self._read()

    def _note(self, event: inotify.FileEvent) -> bool:
        """Keep track of unfinished files; return whether there may be something to read."""
        if event.mask & (inotify.CREATE | inotify.MODIFY):
            if event.mask & inotify.CREATE and not self._has_writer(event.name):
                return True
            self._being_written.add(event.name)
            return False
        self._being_written.discard(event.name)
        return True

    def _has_writer(self, name: str) -> bool:
        """Return whether a name that appeared is a new file, which somebody is about to fill, and no link."""
        try:
            status = os.lstat(os.path.join(self._folder, name))
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_nlink == 1

    # Reading

    def _read(self) -> None:
        """Read what changed and tell the difference."""
        received = time.monotonic()
        try:
            present = {name for name in os.listdir(self._folder) if is_manifest(name)}
        except OSError as error:
            self._tell(False, f"folder {self._folder} cannot be read: {error}")
            return
        for name in sorted(set(self._signatures) - present):
            self._manifests.drop(name)
            del self._signatures[name]
        for name in sorted(present - self._being_written):
            self._read_file(name)
        self._report(received)
        self._tell(True, "; ".join(self._manifests.problems[name] for name in sorted(self._manifests.problems)))

    def _read_file(self, name: str) -> None:
        path = os.path.join(self._folder, name)
        try:
            status = os.stat(path)
            signature = (status.st_mtime_ns, status.st_size, status.st_ino)
            if self._signatures.get(name) == signature:
                return
            # A pipe would keep us waiting for its writer.
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                self._signatures[name] = signature
                self._manifests.unreadable(name, "it is no regular file")
                return
            with open(path, "rb") as stream:
                content = stream.read()
        except OSError as error:
            self._signatures.setdefault(name, (0, 0, 0))
            self._manifests.unreadable(name, os.strerror(error.errno or 0))
            return
        self._signatures[name] = signature
        self._manifests.put(name, content)

    def _report(self, received: float) -> None:
        if self._sink is None:
            raise AssertionError("used before start()")
        if not self._listed:
            for kind, objects, refusals in self._manifests.everything():
                self._sink.put(Replaced(kind, objects, refusals))
            self._listed = True
            return
        difference = self._manifests.difference()
        for identity in difference.deleted:
            self._sink.put(Deleted(*identity, received))
        for obj in difference.upserted:
            self._sink.put(Upserted(obj, received))
        for refusal in difference.refused:
            self._sink.put(Refused(refusal, received))

    def _tell(self, connected: bool, detail: str = "") -> None:
        if self._sink is None:
            raise AssertionError("used before start()")
        state = SourceState(KIND, connected, self._folder, detail)
        if state != self._state:
            self._state = state
            self._sink.put(state)
