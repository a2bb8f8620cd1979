# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.logfmt import configure, fields


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ('say "x"', r'"say \"x\""'),
        ("a\nb", r'"a\nb"'),
        (3, "3"),
    ],
)
def test_values_are_quoted_where_they_must_be(value: object, text: str) -> None:
    assert fields(key=value) == f"key={text}"


@pytest.fixture
def restored_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(
    ("level", "prefix"),
    [(logging.DEBUG, "<7>"), (logging.INFO, "<6>"), (logging.WARNING, "<4>"), (logging.ERROR, "<3>")],
)
def test_journald_gets_a_priority_on_every_line(restored_root: None, level: int, prefix: str) -> None:
    stream = io.StringIO()
    configure("debug", stream, journald=True)
    logging.getLogger("kproxyd").log(level, "first\nsecond")
    assert stream.getvalue() == f"{prefix}first\n{prefix}second\n"


def test_a_terminal_gets_the_level_and_nothing_below_the_threshold(restored_root: None) -> None:
    stream = io.StringIO()
    configure("warning", stream)
    logging.getLogger("kproxyd").info("quiet")
    logging.getLogger("kproxyd").warning("loud")
    assert stream.getvalue().endswith(" WARNING loud\n")
    assert "quiet" not in stream.getvalue()
