# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The bounded journal of commits: what changed, why, and which generation it made.

JSON lines in history.jsonl. When the file has grown to half its limit it becomes history.jsonl.1 and a new one
begins, so both together stay below the limit and the last entries survive a restart. A journal that cannot be
written never stops a commit; it is reported once.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

LOG = logging.getLogger("kproxyd.journal")


class Entry(NamedTuple):
    """One commit, failed commit or repair. time: seconds since the epoch; seconds: how long it took.

    elements: written or removed. added, changed, removed: frontends. causes names the first objects behind it,
    more_causes counts the rest: a relist may carry ten thousand.
    """

    time: float
    action: str
    generation: int
    seconds: float
    elements: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    causes: tuple[str, ...] = ()
    more_causes: int = 0
    error: str = ""

    def document(self) -> dict[str, Any]:
        """Return the JSON form; empty fields are left out."""
        shown = self._replace(time=round(self.time, 3), seconds=round(self.seconds, 6))
        keep = ("time", "action", "generation", "seconds")
        return {key: value for key, value in shown._asdict().items() if key in keep or value}


class Journal:
    """Appends entries to the files of one directory."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        """Take the directory (created if missing) and the limit for both files together."""
        self._path = directory / "history.jsonl"
        self._old = directory / "history.jsonl.1"
        self._limit = limit_bytes // 2
        self._broken = False

    def append(self, entry: Entry) -> None:
        """Write one entry."""
        line = json.dumps(entry.document(), separators=(",", ":")) + "\n"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.write(descriptor, (_end_of_torn_line(descriptor) + line).encode())
                full = os.fstat(descriptor).st_size >= self._limit
            finally:
                os.close(descriptor)
            if full:
                os.replace(self._path, self._old)
            self._broken = False
        except OSError as error:
            if not self._broken:
                LOG.warning("the change history %s cannot be written: %s", self._path, error)
            self._broken = True

    def last_commit(self) -> tuple[int, float]:
        """Return generation and time of the latest commit of any run; (0, 0.0) if there is none.

        Where only failures are left of the history, they say the generation, and nothing the time.
        """
        failed = 0
        for entry in reversed(self.read(1000)):
            generation, time = entry.get("generation"), entry.get("time")
            if isinstance(generation, int) and isinstance(time, (int, float)):
                if entry.get("action") != "failed":
                    return generation, float(time)
                failed = failed or generation
        return failed, 0.0

    def read(self, last: int) -> list[Mapping[str, Any]]:
        """Return up to that many of the latest entries, oldest first; damaged lines are left out."""
        entries = [*_lines(self._old), *_lines(self._path)]
        return entries[-last:] if last > 0 else []


def _end_of_torn_line(descriptor: int) -> str:
    """Return what ends a line that power or a full disk cut off, so that it costs only itself."""
    size = os.fstat(descriptor).st_size
    return "\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else ""


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue  # The line that was being written when the power went.
        if isinstance(document, dict):
            yield document
