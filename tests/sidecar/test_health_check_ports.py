"""Health check node ports on real sockets: who listens where, what is said, what happens when a port is taken."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import health_checks
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.health_checks import (
    HealthCheck,
    HealthCheckServers,
    wanted_listeners,
)
from devtools.http_probe import get, listens
from devtools.serving_probe import OnLoop
from devtools.waiting import eventually

PORT = 32410
EVERYWHERE = {4: ("",), 6: ("",)}
V4_ONLY_HERE = {4: ("127.0.0.1",), 6: ()}


def check(local_endpoints: int, family: int = 4, port: int = PORT) -> HealthCheck:
    return HealthCheck("ha", "web", family, port, local_endpoints)


@pytest.mark.parametrize(
    ("local_endpoints", "proxy_healthy", "status"),
    [(2, True, 200), (0, True, 503), (2, False, 503)],
    ids=["endpoints here", "none here", "proxy late"],
)
def test_answers(on_loop: OnLoop, local_endpoints: int, proxy_healthy: bool, status: int) -> None:
    servers = HealthCheckServers(lambda: proxy_healthy)
    on_loop(lambda: servers.update(wanted_listeners([check(local_endpoints)], EVERYWHERE)))
    page = get(PORT, "/any/path?at=all")
    assert page.status == status
    assert page.headers["X-Load-Balancing-Endpoint-Weight"] == str(local_endpoints)
    assert page.headers["Content-Type"] == "application/json"
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert json.loads(page.body) == {
        "service": {"namespace": "ha", "name": "web"},
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": proxy_healthy,
    }
    head = get(PORT, method="HEAD")
    assert (head.status, head.body) == (status, b"")
    assert get(PORT, method="POST").status == 405


def test_the_count_follows_at_once_and_the_port_goes_with_the_service(on_loop: OnLoop) -> None:
    servers = HealthCheckServers(lambda: True)
    on_loop(lambda: servers.update(wanted_listeners([check(1)], EVERYWHERE)))
    assert get(PORT).status == 200
    on_loop(lambda: servers.update(wanted_listeners([check(0)], EVERYWHERE)))
    assert get(PORT).status == 503
    on_loop(lambda: servers.update({}))
    assert not listens(PORT)


def test_each_family_has_its_own_listener_and_count(on_loop: OnLoop) -> None:
    servers = HealthCheckServers(lambda: True)
    on_loop(lambda: servers.update(wanted_listeners([check(1, 4), check(0, 6)], EVERYWHERE)))
    assert get(PORT, address="127.0.0.1").status == 200
    assert get(PORT, address="::1").status == 503


def test_it_listens_only_where_node_ports_are_served(on_loop: OnLoop) -> None:
    servers = HealthCheckServers(lambda: True)
    on_loop(lambda: servers.update(wanted_listeners([check(1, 4), check(1, 6)], V4_ONLY_HERE)))
    assert listens(PORT, "127.0.0.1")
    assert not listens(PORT, "127.0.0.2")
    assert not listens(PORT, "::1")


def test_a_taken_port_is_reported_and_opened_when_it_is_free(
    on_loop: OnLoop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(health_checks, "RETRY_SECONDS", 0.02)
    servers = HealthCheckServers(lambda: True)
    with socket.create_server(("127.0.0.1", PORT)):
        on_loop(lambda: servers.update(wanted_listeners([check(1), check(1, port=PORT + 1)], EVERYWHERE)))
        assert list(servers.failures.values()) == ["Address already in use"]
        (problem,) = servers.problems()
        assert problem.startswith(f"Service ha/web: health check port {PORT} cannot be opened on any address: Address")
        assert get(PORT + 1).status == 200, "one taken port must not cost the others"
    eventually(lambda: not servers.failures, "the port to be opened")
    assert servers.problems() == ()
    assert get(PORT).status == 200
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1, "told once, not per try"


def test_hundreds_of_ports_need_no_threads(on_loop: OnLoop) -> None:
    before = set(threading.enumerate())
    servers = HealthCheckServers(lambda: True)
    checks = [check(1, port=31000 + offset) for offset in range(300)]
    on_loop(lambda: servers.update(wanted_listeners(checks, EVERYWHERE)))
    assert all(get(port).status == 200 for port in (31000, 31150, 31299))
    # Threads of earlier tests may end meanwhile.
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n", b"431"),
        (b"GET / SPDY/3\r\n\r\n", b"400"),
    ],
    ids=["no HTTP", "endless head", "another protocol"],
)
def test_strange_clients(on_loop: OnLoop, request_bytes: bytes, status: bytes) -> None:
    servers = HealthCheckServers(lambda: True)
    on_loop(lambda: servers.update(wanted_listeners([check(1)], EVERYWHERE)))
    with socket.create_connection(("127.0.0.1", PORT), timeout=60) as client:
        client.sendall(request_bytes)
        assert client.recv(100).split(b" ")[1] == status
    assert get(PORT).status == 200
