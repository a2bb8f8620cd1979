# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's own HTTP endpoints: health on 10256 for load balancers, metrics on 127.0.0.1:10249 for operators.

A port that is taken (kube-proxy still runs?) is reported and tried again; packets are served meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.acceptor import Acceptor, listening_socket
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.http_server import Respond, plain, serve
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.metrics import Metrics
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import (
    JSON_HEADERS,
    HttpAnswer,
    ProxyState,
    healthz,
    livez,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.settings import BindAddress

LOG = logging.getLogger("kproxyd.http")
RETRY_SECONDS = 5.0
_FOR_PEOPLE = "Warning: this page is for people; its form may change at any time."


def health_routes(state: Callable[[], ProxyState], metrics: Metrics) -> Respond:
    """Return what answers on the health port."""

    def respond(path: str) -> HttpAnswer:
        if path == "/healthz":
            now = state()
            answer = healthz(now)
            metrics.checked("healthz", {**_families_in_time(now), "node-eligible": now.node.eligible})
            metrics.healthz.labels(code=str(answer.status)).inc()
            return answer
        if path == "/livez":
            now = state()
            answer = livez(now)
            metrics.checked("livez", _families_in_time(now))
            metrics.livez.labels(code=str(answer.status)).inc()
            return answer
        return plain(404, "only /healthz and /livez\n")

    return respond


def _families_in_time(state: ProxyState) -> dict[str, bool]:
    return {f"sync-{family}": state.family_healthy(family) for family in state.families}


def metrics_routes(
    metrics: Metrics,
    before_scrape: Callable[[], None],
    mode: str,
    config: Mapping[str, object],
    version: str,
    started_at: float,
) -> Respond:
    """Return what answers on the metrics port. config is shown on /configz and /flagz and must hold no secret."""
    configz = json.dumps({"kubeproxy.config.k8s.io": config}, default=str).encode()

    def metrics_page() -> HttpAnswer:
        before_scrape()
        return metrics.exposition()

    pages: Mapping[str, Callable[[], HttpAnswer]] = {
        "/metrics": metrics_page,
        "/metrics/slis": metrics.service_level_indicators,
        "/healthz": lambda: plain(200, "ok"),
        "/proxyMode": lambda: plain(200, mode),
        "/configz": lambda: HttpAnswer(200, JSON_HEADERS, configz),
        "/flagz": lambda: plain(200, flags_page(config)),
        "/statusz": lambda: plain(200, status_page(version, started_at, time.time(), sorted(pages))),
    }

    def respond(path: str) -> HttpAnswer:
        page = pages.get(path)
        return page() if page is not None else plain(404, f"only {', '.join(pages)}\n")

    return respond


def flags_page(config: Mapping[str, object]) -> str:
    """Return the settings in force as text for people (KEP-4828), one a line."""
    lines = [f"{name}={json.dumps(value, default=str)}" for name, value in sorted(config.items())]
    return "\n".join(["kproxyd flagz", _FOR_PEOPLE, "", *lines, ""])


def status_page(version: str, started_at: float, now: float, paths: Sequence[str]) -> str:
    """Return what runs here, and since when, as text for people (KEP-4827)."""
    minutes, seconds = divmod(int(max(0.0, now - started_at)), 60)
    hours, minutes = divmod(minutes, 60)
    started = time.strftime("%a %b %d %H:%M:%S UTC %Y", time.gmtime(started_at))
    lines = [
        f"Started: {started}",
        f"Up: {hours} hr {minutes:02d} min {seconds:02d} sec",
        f"Python version: {platform.python_version()}",
        f"Binary version: {version}",
        f"Paths: {' '.join(paths)}",
    ]
    return "\n".join(["kproxyd statusz", _FOR_PEOPLE, "", *lines, ""])


class HttpEndpoint:
    """One port of the daemon. Every method runs on the serving loop."""

    def __init__(
        self, name: str, bind: BindAddress, respond: Respond, failed: Callable[[str], None] = lambda _why: None
    ) -> None:
        """Take what it is called in messages, where it listens, what answers, and whom to tell of each failure."""
        self._name = name
        self._bind = bind
        self._respond = respond
        self._failed = failed
        self._acceptor: Acceptor | None = None
        self._retry: asyncio.TimerHandle | None = None
        self.failure = ""

    def open(self, hard_fail: bool) -> None:
        """Listen now, or keep trying. Raises OSError instead if it is to fail hard."""
        bind = self._bind
        address = "" if bind.address in ("0.0.0.0", "::") else bind.address
        try:
            # [::] means every address of both families, as it does to kube-proxy.
            listener = listening_socket(bind.family, address, bind.port, both_families=bind.address == "::")
        except OSError as error:
            if hard_fail:
                raise
            if not self.failure:
                LOG.warning(
                    "the %s endpoint cannot listen on %s: %s; trying again every %.0f s. Is kube-proxy still running?",
                    self._name, self._bind, error.strerror, RETRY_SECONDS,
                )  # fmt: skip
            self.failure = f"the {self._name} endpoint cannot listen on {self._bind}: {error.strerror}"
            self._failed(self.failure)
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self.open, False)
            return
        self.failure = ""
        self._acceptor = serve(listener, self._respond)

    def close(self) -> None:
        """Stop listening."""
        if self._retry is not None:
            self._retry.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
