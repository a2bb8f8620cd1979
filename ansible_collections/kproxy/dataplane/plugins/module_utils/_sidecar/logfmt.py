# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Log lines for journald: a priority prefix, the message, then key=value pairs.

One line per decision. "<4>" at the start of a line is how a service tells journald the priority on stderr
(sd-daemon(3)); a terminal gets the level's name instead.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}


def fields(**values: object) -> str:
    """Return key=value pairs; values with blanks or quotes are quoted."""
    return " ".join(f"{key}={_quoted(str(value))}" for key, value in values.items())


def configure(level: str, stream: TextIO = sys.stderr, journald: bool = False) -> None:
    """Send this program's log to one stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(journald))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Formatter(logging.Formatter):
    def __init__(self, journald: bool) -> None:
        super().__init__("%(message)s" if journald else "%(asctime)s %(levelname)s %(message)s")
        self._journald = journald

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._journald:
            return text
        prefix = f"<{PRIORITIES.get(record.levelno, 6)}>"
        # Every line of a multi-line message needs its own priority.
        return "\n".join(prefix + line for line in text.split("\n"))


def _quoted(text: str) -> str:
    if text and not any(character in text for character in ' "=\n'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
