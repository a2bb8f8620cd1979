"""A network namespace per test, and a serving thread that lives in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.serving import ServingThread
from devtools.conformance.netns import NetworkNamespace
from devtools.serving_probe import OnLoop


@pytest.fixture
def namespace() -> Iterator[NetworkNamespace]:
    """Move the test, and every thread and process it starts, into a namespace with loopback only."""
    made = NetworkNamespace()
    made.ip(["link set lo up"])
    with made.entered():
        yield made
    made.close()


@pytest.fixture
def on_loop(namespace: NetworkNamespace) -> Iterator[OnLoop]:
    """A serving thread inside the namespace."""
    serving = ServingThread()
    yield OnLoop(serving)
    serving.stop()
