# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of a watch, however they are cut."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import watch_stream
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.watch_stream import (
    NotAWatch,
    WatchEvent,
    decode,
    lines,
    version_of,
)

LINES = [b'{"type":"ADDED"}', b'{"type":"BOOKMARK"}', b""]


@pytest.mark.parametrize("size", range(1, 40))
def test_lines_do_not_depend_on_the_pieces(size: int) -> None:
    stream = b"".join(line + b"\n" for line in LINES)
    assert list(lines(stream[start : start + size] for start in range(0, len(stream), size))) == LINES


def test_nothing_is_no_line() -> None:
    assert list(lines([b"", b""])) == []


def test_a_stream_that_ends_within_an_event_is_broken_off() -> None:
    with pytest.raises(NotAWatch, match="within an event"):
        list(lines([b'{"type":"ADDED"}\n{"ty']))


def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_stream, "MAX_LINE", 64)
    with pytest.raises(NotAWatch, match="longer than 64"):
        list(lines(b"x" * 10 for _round in range(100)))


GOOD = [
    (b'{"type":"ADDED","object":{"a":1}}', WatchEvent("ADDED", {"a": 1})),
    (b' {"type":"ERROR","object":{},"more":2} ', WatchEvent("ERROR", {})),
]
BAD = [
    (b"<html>", "not JSON"),
    (b"\x00\xff\xfe", "not JSON"),
    (b"[]", "no JSON object"),
    (b'"ADDED"', "no JSON object"),
    (b'{"object":{}}', "type 'None'"),
    (b'{"type":"ADDED"}', "with NoneType"),
    (b'{"type":"ADDED","object":[]}', "with list"),
    (b'{"type":"CHANGED","object":{}}', "'CHANGED'"),
    (b'{"type":{},"object":{}}', "'{}'"),
    (b"[" * 100_000, "not JSON"),
]


@pytest.mark.parametrize(("line", "event"), GOOD)
def test_decode(line: bytes, event: WatchEvent) -> None:
    assert decode(line) == event


@pytest.mark.parametrize(("line", "message"), BAD)
def test_decode_refuses(line: bytes, message: str) -> None:
    with pytest.raises(NotAWatch, match=message):
        decode(line)


@pytest.mark.parametrize("content", [{}, {"metadata": None}, {"metadata": {}}, {"metadata": {"resourceVersion": 7}}])
def test_an_object_without_version_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(NotAWatch, match="resourceVersion"):
        version_of(content)


def test_version_is_opaque_text() -> None:
    assert version_of({"metadata": {"resourceVersion": "0x1f-a"}}) == "0x1f-a"
