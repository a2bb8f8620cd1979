"""A network namespace per test, a serving thread that lives in it, and a daemon on a node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.serving import ServingThread
from devtools.conformance.netns import NetworkNamespace
from devtools.kproxyd_process import KproxydProcess
from devtools.serving_probe import OnLoop
from tests.sidecar.one_node import NODE_IP, POD_IPS


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


@pytest.fixture
def node(namespace: NetworkNamespace) -> NetworkNamespace:
    """A node with three addresses that stand for pods, and a route to the cluster IPs."""
    namespace.ip(
        [
            "link add uplink type veth peer name far-end",
            "link set uplink up",
            "link set far-end up",
            f"addr add {NODE_IP}/24 dev uplink",
            *(f"addr add {ip}/32 dev uplink" for ip in POD_IPS),
            "route add 10.96.0.0/12 dev uplink",
        ]
    )
    return namespace


@pytest.fixture
def kproxyd(node: NetworkNamespace) -> Iterator[KproxydProcess]:
    daemon = KproxydProcess(node)
    yield daemon
    daemon.close()
