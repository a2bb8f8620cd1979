# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What waits for the loop that owns the engine: source events and questions from kproxyctl.

put() never blocks and works from any thread; the loop sleeps in select() on fileno() together with the kernel's
notifications, so one event wakes it at once and a thousand cost one wake-up.
"""

from __future__ import annotations

import collections
import contextlib
import os
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Inbox(Generic[Item]):
    """A queue with a file descriptor that is readable while something is in it."""

    def __init__(self) -> None:
        """Create the queue and its wake-up pipe."""
        self._items: collections.deque[Item] = collections.deque()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._reader

    def put(self, item: Item) -> None:
        """Add one item."""
        self._items.append(item)
        # A full pipe holds wake-ups enough.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def take_all(self) -> list[Item]:
        """Remove and return everything, oldest first."""
        # Empty the pipe first: an item that arrives in between leaves a spare wake-up, never a lost one.
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._reader, 65536)) == 65536:
                pass
        taken = []
        while self._items:
            taken.append(self._items.popleft())
        return taken

    def close(self) -> None:
        """Release the descriptors."""
        os.close(self._reader)
        os.close(self._writer)
