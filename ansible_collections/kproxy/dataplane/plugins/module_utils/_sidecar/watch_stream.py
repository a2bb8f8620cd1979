# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of a watch, cut into events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

# One object of the largest size etcd takes (1.5 MiB) fits several times over; a line without end is no watch.
MAX_LINE = 16 * 1024 * 1024
KINDS = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"})


class NotAWatch(ValueError):
    """The bytes are no stream of watch events."""


class WatchEvent(NamedTuple):
    """One line: its type, and the object, the bookmark's versioned shell, or a Status."""

    type: str
    object: dict[str, Any]


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield complete lines; one may come in many pieces, one piece may hold many.

    Raises:
        NotAWatch: a line does not end, or the stream ends within one.
    """
    rest = b""
    for piece in pieces:
        *complete, tail = piece.split(b"\n")
        if complete:
            complete[0] = rest + complete[0]
            rest = tail
            yield from complete
        else:
            rest += tail
        if len(rest) > MAX_LINE:
            raise NotAWatch(f"a line is longer than {MAX_LINE} bytes")
    if rest.strip():
        raise NotAWatch("the stream ended within an event")


def decode(line: bytes) -> WatchEvent:
    """Return the event of one line. Raises NotAWatch."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotAWatch(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise NotAWatch("an event is no JSON object")
    kind, content = document.get("type"), document.get("object")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(content, dict):
        raise NotAWatch(f"event of type {str(kind)[:40]!r} with {type(content).__name__}")
    return WatchEvent(kind, content)


def version_of(content: dict[str, Any]) -> str:
    """Return the resource version of an object or bookmark. Raises NotAWatch if it has none."""
    metadata = content.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    if not isinstance(version, str) or not version:
        raise NotAWatch("an object without resourceVersion")
    return version
