# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How long to wait before trying again."""

from __future__ import annotations

import random


class Backoff:
    """Pauses that double up to a limit, each shortened at random so that a thousand nodes do not retry together.

    Args:
        first: the first pause at its longest, in seconds.
        last: the limit in seconds.
        source: random numbers; a seeded one makes a test repeatable.
    """

    def __init__(self, first: float, last: float, source: random.Random | None = None) -> None:
        self._first = first
        self._last = last
        self._random = source or random.Random()
        self._pause = first

    def next(self) -> float:
        """Return the next pause in seconds: between half and all of the current step."""
        step = self._pause
        self._pause = min(step * 2, self._last)
        return step * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """Begin again with the first pause: something worked."""
        self._pause = self._first
