"""Call what lives on the daemon's serving loop from a test's own thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.serving import ServingThread

Result = TypeVar("Result")


class OnLoop:
    """Calls functions on the serving loop and waits for their results."""

    def __init__(self, serving: ServingThread) -> None:
        self.serving = serving

    def __call__(self, function: Callable[[], Result]) -> Result:
        """Run one function there; raises what it raises."""

        async def call() -> Result:
            return function()

        return self.serving.run(call())
