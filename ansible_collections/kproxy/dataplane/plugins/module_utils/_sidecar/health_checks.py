# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Health check node ports of Services (type LoadBalancer with externalTrafficPolicy Local).

Every listener answers any path alike: 200 if this node has ready endpoints of the Service and the proxy is in order,
else 503 (kube-proxy: pkg/proxy/healthcheck/service_health.go). There is one listener per address family, each with
its own family's count, on the addresses where NodePorts are served. Whether the node is about to be deleted does not
matter here; that is what /healthz tells.

A port that cannot be bound is reported once and tried again until it works or is no longer wanted.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Callable, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.acceptor import Acceptor, listening_socket
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.http_server import serve
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import JSON_HEADERS, HttpAnswer

LOG = logging.getLogger("kproxyd.health")
WEIGHT_HEADER = "X-Load-Balancing-Endpoint-Weight"
RETRY_SECONDS = 5.0
ANY_ADDRESS = ""


class HealthCheck(NamedTuple):
    """One Service's health check port in one address family."""

    namespace: str
    service: str
    family: int
    port: int
    local_endpoints: int


class Listener(NamedTuple):
    """Where one health check is answered; address "" is every address of the family."""

    family: int
    address: str
    port: int


def answer(check: HealthCheck, proxy_healthy: bool) -> HttpAnswer:
    """Return what the health check port says; the count stays truthful when the proxy is late."""
    document = {
        "service": {"namespace": check.namespace, "name": check.service},
        "localEndpoints": check.local_endpoints,
        "serviceProxyHealthy": proxy_healthy,
    }
    status = 200 if check.local_endpoints > 0 and proxy_healthy else 503
    return HttpAnswer(
        status, JSON_HEADERS + ((WEIGHT_HEADER, str(check.local_endpoints)),), json.dumps(document).encode()
    )


def wanted_listeners(
    checks: Iterable[HealthCheck], addresses: Mapping[int, tuple[str, ...]]
) -> dict[Listener, HealthCheck]:
    """Return which listener answers for which check.

    Args:
        checks: all health checks of this node.
        addresses: per family, the addresses that accept NodePorts; ("",) is every address, () is none.
    """
    return {
        Listener(check.family, address, check.port): check
        for check in checks
        for address in addresses.get(check.family, ())
    }


class HealthCheckServers:
    """The open health check ports. Every method runs on the serving loop."""

    def __init__(
        self, proxy_healthy: Callable[[], bool], failed: Callable[[HealthCheck, str], None] = lambda _check, _why: None
    ) -> None:
        """Take what tells whether the proxy is in order at the time of a request, and whom to tell of each failure."""
        self._proxy_healthy = proxy_healthy
        self._failed = failed
        self._wanted: dict[Listener, HealthCheck] = {}
        self._open: dict[Listener, Acceptor] = {}
        self._retry: asyncio.TimerHandle | None = None
        self.failures: dict[Listener, str] = {}

    def update(self, wanted: Mapping[Listener, HealthCheck]) -> None:
        """Close what is no longer wanted, open what is missing; counts apply at once to open listeners."""
        self._wanted = dict(wanted)
        for listener in [one for one in self._open if one not in self._wanted]:
            self._open.pop(listener).close()
        self.failures = {one: why for one, why in self.failures.items() if one in self._wanted}
        for listener in self._wanted:
            if listener not in self._open:
                self._listen(listener)
        self._schedule_retry()

    def close(self) -> None:
        """Close every port."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for server in self._open.values():
            server.close()
        self._open.clear()

    def problems(self) -> tuple[str, ...]:
        """Return which ports cannot be opened, one sentence each. Safe to call from any thread."""
        wanted = self._wanted
        return tuple(
            f"Service {check.namespace}/{check.service}: health check port {listener.port} cannot be opened on "
            f"{listener.address or 'any address'}: {why}; load balancers take this node for one without endpoints"
            for listener, why in sorted(dict(self.failures).items())
            for check in [wanted.get(listener)]
            if check is not None
        )

    def _listen(self, listener: Listener) -> None:
        try:
            socket = listening_socket(listener.family, listener.address, listener.port)
        except OSError as error:
            if listener not in self.failures:
                check = self._wanted[listener]
                LOG.warning(
                    "Service %s/%s: health check port %d cannot be opened on %s: %s; trying again every %.0f s",
                    check.namespace, check.service, listener.port, listener.address or "any address",
                    error.strerror, RETRY_SECONDS,
                )  # fmt: skip
            self.failures[listener] = error.strerror or str(error)
            self._failed(self._wanted[listener], self.failures[listener])
            return
        self._open[listener] = serve(socket, lambda _path: self._respond(listener))
        if self.failures.pop(listener, None) is not None:
            LOG.info("health check port %d is open now on %s", listener.port, listener.address or "any address")

    def _respond(self, listener: Listener) -> HttpAnswer:
        # A connection accepted before its port was closed still deserves an answer: no endpoints.
        check = self._wanted.get(listener, HealthCheck("", "", listener.family, listener.port, 0))
        return answer(check, self._proxy_healthy())

    def _schedule_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self.failures:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.update, self._wanted)
