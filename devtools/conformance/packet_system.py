"""The product as a system: a real proxy in the node's namespace, real packets around it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devtools.conformance import conntrack
from devtools.conformance.corpus import (
    Case,
    ConntrackEntry,
    Scope,
    SocketAddress,
    family,
    slice_endpoints,
)
from devtools.conformance.facts import HttpResponse, find_sample
from devtools.conformance.manifests import ApiState
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import NodeCgroup
from devtools.conformance.observation import Observation
from devtools.conformance.product import Product, node_port_address
from devtools.conformance.timescale import MARGIN_SECONDS
from devtools.conformance.traffic import Shot, Traffic
from devtools.conformance.world import World, is_loopback, layout

METRICS_PORT = 10249
#: Connections are the kernel's, answers the daemon's, which may have little of the processor.
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 60.0


class PacketSystem:
    """One case's world, its traffic and a product under test.

    held_up: more time has passed somewhere than the case asks for, as on a machine that stood still.
    """

    patience_seconds = 20.0

    def __init__(
        self, case: Case, doubles: Mapping[str, list[str]], product: Product, node_cgroup: NodeCgroup | None = None
    ) -> None:
        self._case = case
        self._api = ApiState(case)
        self._product = product
        self._world = World(layout(case, doubles))
        self._traffic = Traffic(self._world, node_cgroup)
        self._conntrack: dict[str, conntrack.Flow] = {}
        self._step_began = self._shot_at = time.monotonic()
        self._advanced = 0.0
        self.held_up = False
        self._traffic.listen(listening_places(case))

    @property
    def node(self) -> NetworkNamespace:
        """The namespace of the node under test."""
        return self._world.node

    def start(self, scope: Scope) -> None:
        self._api.apply(scope)
        self._product.start(self._case, self._world.node, list(self._api.objects.values()))

    def apply(self, scope: Scope) -> None:
        self._step_began = time.monotonic()
        changed, deleted = self._api.apply(scope)
        self._product.apply(changed, deleted, list(self._api.objects.values()))

    def advance(self, seconds: float) -> None:
        # Time itself is what the case asks for; there is no condition to wait for. What the step took has passed,
        # which is much where the daemon was started anew.
        time.sleep(max(0.0, self._step_began + seconds - time.monotonic()))
        self._advanced += seconds

    def shoot(self, shots: Sequence[Shot]) -> list[Observation]:
        began = time.monotonic()
        seen = self._traffic.shoot(shots)
        # What was to last until now may have ended where much more time has passed than the case asks for.
        self.held_up |= self._advanced > 0 and time.monotonic() - self._shot_at > self._advanced + MARGIN_SECONDS
        self._shot_at, self._advanced = began, 0.0
        return seen

    def insert_conntrack(self, entries: Sequence[ConntrackEntry]) -> None:
        self._conntrack = conntrack.insert(self._world.node, entries)

    def conntrack_left(self) -> set[str]:
        return conntrack.present(self._world.node, self._conntrack)

    def health_check(self, check: Mapping[str, Any]) -> HttpResponse | None:
        wanted = 4 if check["family"] == "IPv4" else 6
        address = check.get("at") or node_port_address(self._case, wanted)
        return self._get(address, check["port"], "/")

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        return self._product.proxy_health(check)

    def metric(self, name: str, labels: Mapping[str, str]) -> float | None:
        response = self._get("127.0.0.1", METRICS_PORT, "/metrics")
        return find_sample(response.body.decode(), name, labels) if response is not None else None

    def _get(self, address: str, port: int, path: str) -> HttpResponse | None:
        """Ask from the node itself; None if nothing listens there."""
        with self._world.node.entered():
            sock = socket.socket(socket.AF_INET6 if family(address) == 6 else socket.AF_INET)
        with contextlib.closing(sock):
            sock.settimeout(CONNECT_SECONDS)
            try:
                sock.connect((address, port))
            except (ConnectionRefusedError, TimeoutError):
                return None
            sock.settimeout(ANSWER_SECONDS)
            connection = http.client.HTTPConnection(address, port)
            connection.sock = sock
            connection.request("GET", path)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return HttpResponse(response.status, headers, response.read())

    def close(self) -> None:
        self._product.stop()
        self._traffic.close()
        self._world.close()


def listening_places(case: Case) -> Iterable[tuple[SocketAddress, str]]:
    """Where somebody has to listen: every endpoint, usable or not, and every probed address.

    Not on a loopback address where the product may have to: see unserved().
    """
    kept_free = unserved(case)
    for address, protocol in slice_endpoints(case.manifests):
        if not is_loopback(address.ip):
            yield address, protocol
    for probe in case.probes:
        to = probe.to
        if to.protocol != "ICMP" and (to.ip, to.port, to.protocol) not in kept_free:
            yield SocketAddress(to.ip, to.port), to.protocol


def unserved(case: Case) -> frozenset[tuple[str, int, str]]:
    """Probed loopback addresses that the product may serve itself: some probe there expects its relay."""
    return frozenset(
        (probe.to.ip, probe.to.port, probe.to.protocol)
        for probe in case.probes
        if is_loopback(probe.to.ip)
        and probe.to.protocol == "TCP"
        and any(other.expect.verdict == "relay" and other.to == probe.to for other in case.probes)
    )
