"""Wait for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
#: Only a condition that never comes true costs so much; on a busy machine one that does may take its time.
LIMIT_SECONDS = 60.0


def eventually(condition: Callable[[], Value], what: str, limit_seconds: float = LIMIT_SECONDS) -> Value:
    """Return the first true value of a condition. Raises AssertionError when it does not come in time."""
    deadline = time.monotonic() + limit_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit_seconds:g} s in vain: {what}")
        time.sleep(0.01)
