"""What the daemon tells others as a process on a real kernel: probes, the service manager, metrics, its socket."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import Refused
from devtools.conformance.netns import NetworkNamespace
from devtools.http_probe import get, listens
from devtools.kproxyd_process import START_SECONDS, KproxydProcess, NotifySocket
from devtools.waiting import eventually
from tests.sidecar.one_node import NODE_IP, POD_IPS, endpoints, service, this_node

BALANCED = service(
    type="LoadBalancer",
    externalTrafficPolicy="Local",
    healthCheckNodePort=32080,
    ports=[{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 31080}],
)


def test_health_check_ports_follow_the_local_endpoints(kproxyd: KproxydProcess) -> None:
    kproxyd.write([this_node(), BALANCED, endpoints(POD_IPS[0])])
    kproxyd.start()
    eventually(lambda: listens(32080, NODE_IP), "the port to open")
    page = get(32080, address=NODE_IP)
    assert (page.status, json.loads(page.body)["localEndpoints"]) == (200, 1)
    assert not listens(32080, POD_IPS[0]), "NodePorts are served on the primary address only"
    kproxyd.write([this_node(), BALANCED, endpoints()])
    eventually(lambda: get(32080, address=NODE_IP).status == 503, "503 without endpoints")
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    eventually(lambda: not listens(32080, NODE_IP), "the port to close")


def test_a_health_check_port_opens_when_its_address_arrives(kproxyd: KproxydProcess, node: NetworkNamespace) -> None:
    kproxyd.config["nodePortAddresses"] = ["198.51.100.0/24"]
    kproxyd.write([this_node(), BALANCED, endpoints(POD_IPS[0])])
    kproxyd.start()
    node.ip(["addr add 198.51.100.7/24 dev uplink"])
    eventually(lambda: listens(32080, "198.51.100.7"), "the port to open on the new address")


def test_the_service_manager_is_told(kproxyd: KproxydProcess) -> None:
    manager = NotifySocket(kproxyd.folder)
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    kproxyd.start(wait=False, environment={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "300000"})
    assert manager.wait_for("READY") == "1"
    assert kproxyd.in_step()
    assert manager.wait_for("STATUS").startswith("In step, generation 1, 1 frontends")
    for _ in range(3):
        assert manager.wait_for("WATCHDOG") == "1"
    assert kproxyd.process is not None
    kproxyd.process.send_signal(signal.SIGTERM)
    assert manager.wait_for("STOPPING") == "1"
    assert kproxyd.process.wait(START_SECONDS) == 0
    manager.close()


def test_a_hung_daemon_is_not_reported_alive(kproxyd: KproxydProcess) -> None:
    manager = NotifySocket(kproxyd.folder)
    kproxyd.write([this_node()])
    kproxyd.start(environment={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "300000"})
    assert kproxyd.process is not None
    manager.wait_for("WATCHDOG")
    kproxyd.stop()
    manager.drain()
    assert manager.silent_for(0.6)
    kproxyd.process.send_signal(signal.SIGCONT)
    manager.wait_for("WATCHDOG")
    manager.close()


def test_metrics_have_kube_proxys_names(kproxyd: KproxydProcess) -> None:
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    kproxyd.start()
    kproxyd.write([this_node(), service(), endpoints(*POD_IPS)])
    eventually(lambda: len(kproxyd.ask("backends")) == 3, "the change")
    text = get(10249, "/metrics").body.decode()
    for sample in (
        'kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 2.0',
        'kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1.0',
        'kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1.0',
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0.0",
        'kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0.0',
        'kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv4"} 0.0',
        'kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 0.0',
        'kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 0.0',
        'kubeproxy_nftables_localhost_nodeport_listeners{ip_family="IPv4"} 0.0',
        "kproxy_event_to_commit_seconds_count 1.0",
        "kproxy_foreign_repairs_total 0.0",
        "kproxy_generation 2.0",
    ):
        assert sample in text.splitlines(), sample
    assert get(10249, "/proxyMode").body == b"nftables"
    assert get(10249, "/healthz").body == b"ok"
    assert b"shop" not in get(10249, "/configz").body
    assert get(10249, "/nothing").status == 404


def test_refused_packets_on_loopback_are_counted_by_protocol(kproxyd: KproxydProcess) -> None:
    gate = "KubeProxyNFTablesLocalhostNodePorts"
    kproxyd.config |= {"featureGates": {gate: True}, "nodePortAddresses": ["primary", "localhost"]}
    port = {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}
    slice_of = {**endpoints(*POD_IPS), "ports": [{"name": "dns", "protocol": "UDP", "port": 53}]}
    kproxyd.write([this_node(), service(type="NodePort", ports=[port]), slice_of])
    kproxyd.start()
    for _datagram in range(3):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.settimeout(60)
            client.connect(("127.0.0.1", 30053))
            client.send(b"x")
            with pytest.raises(ConnectionRefusedError):
                client.recv(1)
    name = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total"
    shown = get(10249, "/metrics").body.decode().splitlines()
    assert f'{name}{{ip_family="IPv4",protocol="UDP"}} 3.0' in shown
    assert f'{name}{{ip_family="IPv4",protocol="SCTP"}} 0.0' in shown
    assert f'{name}{{ip_family="IPv6",protocol="UDP"}} 0.0' in shown


def test_the_socket_is_roots_alone(kproxyd: KproxydProcess) -> None:
    kproxyd.write([this_node()])
    kproxyd.start()
    assert os.stat(kproxyd.config["kproxy"]["socketPath"]).st_mode & 0o777 == 0o600
    with pytest.raises(Refused, match="unknown command"):
        kproxyd.ask("reboot")
    with pytest.raises(Refused, match="not known here"):
        kproxyd.ask("show", namespace="shop", service="nothing")
    with pytest.raises(Refused, match="different address families"):
        kproxyd.ask("trace", **{"from": "10.0.0.1", "to": "::1", "port": 80})


def test_what_serves_nobody_is_said_in_the_status_the_log_and_a_metric(kproxyd: KproxydProcess) -> None:
    kproxyd.config["clusterCIDR"] = "10.244.0.0/16"
    kproxyd.start()
    assert [text for text in kproxyd.ask("status")["problems"] if text.endswith("write manifests into it")]
    eventually(lambda: "holds no Service, so nothing is served" in kproxyd.last_words(), "the warning")
    eventually(lambda: b"\nkproxy_problems 1.0\n" in get(10249, "/metrics").body, "the metric")
    by_hand = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "web", "namespace": "shop"}}
    kproxyd.write([this_node(), service(), by_hand])
    eventually(lambda: kproxyd.ask("status")["refused"], "Endpoints to be refused")
    (refused,) = kproxyd.ask("status")["refused"]
    assert refused.startswith("Endpoints shop/web: is not read")
    assert "refused: Endpoints shop/web: is not read" in kproxyd.last_words()
    kproxyd.write([this_node(), service(), by_hand, endpoints(POD_IPS[0])])
    eventually(lambda: not kproxyd.ask("status")["refused"], "the refusal to be taken back")
    assert kproxyd.ask("status")["problems"] == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"clusterCIDRs": "10.0.0.0/8"}, "clusterCIDRs is not known; did you mean clusterCIDR?"),
        ({"detectLocalMode": "Magic"}, "detectLocalMode is 'Magic'"),
    ],
)
def test_a_bad_configuration_ends_at_once(kproxyd: KproxydProcess, config: dict[str, Any], words: str) -> None:
    kproxyd.config.update(config)
    kproxyd.start(wait=False)
    assert kproxyd.process is not None
    assert kproxyd.process.wait(START_SECONDS) == 2
    assert words in kproxyd.last_words()
