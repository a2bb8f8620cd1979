# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The API server as a source: one reflector per resource over one client."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_client import ApiClient
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.credentials import Credentials
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import Sink
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reflector import Counters, Reflector
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.resources import watched
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.certificate import Validity

# All threads together: the service manager kills a daemon that is not gone after ten.
STOP_SECONDS = 2.0


class ApiSource:
    """Services, EndpointSlices, this node and the service ranges, kept in step with the API server.

    Nothing here raises after the start: a missing kubeconfig, a refused server or expired credentials are states, told
    to the sink and tried again, because a node may well boot before its control plane.

    Args:
        kubeconfig: path of the kubeconfig; it and what it names may be renewed at any time.
        node_name: whose Node object to watch.
        servers: API servers to use instead of the kubeconfig's, in order of preference.
        service_cidrs: the service ranges as far as configured; no server may lie in them.
    """

    def __init__(
        self, kubeconfig: str, node_name: str, servers: Sequence[str] = (), service_cidrs: Sequence[str] = ()
    ) -> None:
        self._client = ApiClient(Credentials(kubeconfig, servers, service_cidrs))
        self._node_name = node_name
        self._reflectors: tuple[Reflector, ...] = ()

    def start(self, sink: Sink) -> None:
        """Begin to list and watch in threads of its own; returns at once."""
        self._reflectors = tuple(Reflector(resource, self._client, sink) for resource in watched(self._node_name))
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """End the threads; one that waits for a server which does not answer is left behind."""
        for reflector in self._reflectors:
            reflector.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for reflector in self._reflectors:
            reflector.join(max(0.0, deadline - time.monotonic()))

    def problems(self) -> tuple[str, ...]:
        """Return what will end the connection if nobody looks after it."""
        return self._client.credentials.ending(time.time())

    @property
    def validity(self) -> Validity | None:
        """Return how long the client certificate in use is good; None without one."""
        return self._client.credentials.validity

    @property
    def client(self) -> ApiClient:
        """Return what requests are sent with."""
        return self._client

    @property
    def synced(self) -> bool:
        """Return whether every resource was listed once."""
        return bool(self._reflectors) and all(reflector.synced for reflector in self._reflectors)

    @property
    def counters(self) -> dict[str, Counters]:
        """Return what happened so far, by kind."""
        return {reflector.resource.kind: reflector.counters for reflector in self._reflectors}
