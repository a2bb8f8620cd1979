# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The thread that answers other people: probes, scrapes, kproxyctl and relayed connections.

The main thread owns the engine and must never wait for a client; everything that talks to clients lives on one asyncio
loop here. The main thread hands over plain values and never touches what this loop owns.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, Callable, TypeVar

Result = TypeVar("Result")


class ServingThread:
    """One asyncio loop in one daemon thread."""

    def __init__(self) -> None:
        """Start the loop; it runs until stop() or the end of the process."""
        self.loop = asyncio.new_event_loop()
        self._heartbeat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="serving", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result], timeout_seconds: float = 30.0) -> Result:
        """Run a coroutine on the loop and wait for its result. Raises whatever it raises."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_seconds)

    def post(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine on the loop without waiting; posts are started in order."""
        asyncio.run_coroutine_threadsafe(work, self.loop)

    def call_soon(self, function: Callable[[], Any]) -> None:
        """Run a function on the loop without waiting."""
        self.loop.call_soon_threadsafe(function)

    def beat(self) -> None:
        """Ask the loop for a sign of life, to be read with alive_within()."""
        self.loop.call_soon_threadsafe(self._mark)

    def alive_within(self, seconds: float) -> bool:
        """Return whether the loop gave a sign of life that recently."""
        return self._thread.is_alive() and time.monotonic() - self._heartbeat <= seconds

    def stop(self) -> None:
        """End the loop and wait for the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)

    def _mark(self) -> None:
        self._heartbeat = time.monotonic()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()
