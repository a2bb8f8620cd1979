"""The daemon's own ports on real sockets."""

from __future__ import annotations

import functools
import json
import socket

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import http_endpoints
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.http_endpoints import (
    HttpEndpoint,
    health_routes,
    metrics_routes,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.http_server import plain
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.metrics import Metrics
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import NodeEligibility, ProxyState
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.settings import parse_bind_address
from devtools.http_probe import get, listens
from devtools.serving_probe import OnLoop
from devtools.waiting import eventually

PORT = 10256


@pytest.mark.parametrize(
    ("bind", "answers", "silent"),
    [
        ("0.0.0.0:10256", ["127.0.0.1", "127.0.0.2"], ["::1"]),
        ("127.0.0.1:10256", ["127.0.0.1"], ["127.0.0.2", "::1"]),
        ("[::]:10256", ["::1", "127.0.0.1"], []),
        ("[::1]:10256", ["::1"], ["127.0.0.1"]),
    ],
)
def test_where_it_listens(on_loop: OnLoop, bind: str, answers: list[str], silent: list[str]) -> None:
    endpoint = HttpEndpoint("health", parse_bind_address(bind), lambda path: plain(200, path))
    on_loop(lambda: endpoint.open(hard_fail=True))
    assert [get(PORT, "/x", address).body for address in answers] == [b"/x"] * len(answers)
    assert not [address for address in silent if listens(PORT, address)]
    on_loop(endpoint.close)
    assert not [address for address in answers if listens(PORT, address)]


def test_a_taken_port_is_tried_again_or_fails_at_once(on_loop: OnLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoints, "RETRY_SECONDS", 0.02)
    endpoint = HttpEndpoint("health", parse_bind_address("0.0.0.0:10256"), lambda path: plain(200, "ok"))
    with socket.create_server(("127.0.0.1", PORT)):
        on_loop(lambda: endpoint.open(hard_fail=False))
        assert endpoint.failure == "the health endpoint cannot listen on 0.0.0.0:10256: Address already in use"
        with pytest.raises(OSError, match="Address already in use"):
            on_loop(lambda: endpoint.open(hard_fail=True))
    eventually(lambda: not endpoint.failure, "the port to be opened")
    assert get(PORT).status == 200


def test_probes_are_answered_and_counted(on_loop: OnLoop) -> None:
    metrics = Metrics()
    state = [ProxyState(1_800_000_000.0, 30.0, NodeEligibility(known=True))]
    health = HttpEndpoint("health", parse_bind_address("0.0.0.0:10256"), health_routes(lambda: state[0], metrics))
    pages = metrics_routes(metrics, lambda: None, "nftables", {"a": 1}, "1.2.3", 0.0)
    shown = HttpEndpoint("metrics", parse_bind_address("127.0.0.1:10249"), pages)
    for endpoint in (health, shown):
        on_loop(functools.partial(endpoint.open, hard_fail=True))
    assert (get(PORT, "/healthz").status, get(PORT, "/livez").status, get(PORT, "/").status) == (200, 200, 404)
    state[0] = state[0]._replace(node=NodeEligibility(known=True, being_deleted=True))
    assert (get(PORT, "/healthz").status, get(PORT, "/livez").status) == (503, 200)
    samples = get(10249, "/metrics").body.decode().splitlines()
    assert 'kubeproxy_proxy_healthz_total{code="200"} 1.0' in samples
    assert 'kubeproxy_proxy_healthz_total{code="503"} 1.0' in samples
    assert 'kubeproxy_proxy_livez_total{code="200"} 2.0' in samples
    indicators = get(10249, "/metrics/slis").body.decode().splitlines()
    assert 'kubernetes_healthcheck{name="node-eligible",type="healthz"} 0.0' in indicators
    assert 'kubernetes_healthcheck{name="sync-IPv6",type="livez"} 1.0' in indicators
    assert 'kubernetes_healthchecks_total{name="node-eligible",status="success",type="healthz"} 1.0' in indicators
    assert 'kubernetes_healthchecks_total{name="node-eligible",status="error",type="healthz"} 1.0' in indicators
    assert 'kubernetes_healthchecks_total{name="sync-IPv4",status="success",type="livez"} 2.0' in indicators
    assert get(10249, "/proxyMode").body == b"nftables"
    assert json.loads(get(10249, "/configz").body) == {"kubeproxy.config.k8s.io": {"a": 1}}
    assert "\na=1\n" in get(10249, "/flagz").body.decode()
    status = get(10249, "/statusz").body.decode().splitlines()
    assert "Started: Thu Jan 01 00:00:00 UTC 1970" in status
    assert "Binary version: 1.2.3" in status
    assert "/metrics/slis" in status[-1]
