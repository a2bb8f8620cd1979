"""The daemon as a process on a real kernel: restarts, foreign changes, failures, and what it tells others.

One namespace is the node. Endpoints are addresses of the node itself, so that a connection from the node to a cluster
IP runs through the tables and ends at a listener of this test.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.writes_blocked import own_tables
from devtools.http_probe import get, listens
from devtools.kproxyd_process import KproxydProcess, NotifySocket
from devtools.waiting import eventually

CASES = Path(__file__).resolve().parents[1] / "cases"
NODE_IP = "192.0.2.11"
POD_IPS = ("10.244.1.21", "10.244.1.22", "10.244.1.23")
CLUSTER_IP = "10.96.7.7"
PORT = 8080


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


@pytest.fixture
def pods(node: NetworkNamespace) -> Iterator[None]:
    """Listeners that accept and close; the kernel's backlog answers, so that no accept is ever late."""
    listeners = [socket.create_server((ip, PORT), backlog=4096) for ip in POD_IPS]

    def drain(listener: socket.socket) -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return

    for listener in listeners:
        threading.Thread(target=drain, args=(listener,), daemon=True).start()
    yield
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def service(name: str = "web", cluster_ip: str = CLUSTER_IP, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {
            "clusterIP": cluster_ip,
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": PORT}],
            **spec,
        },
    }


def endpoints(*ips: str, name: str = "web") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": PORT}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}, "nodeName": "n1"} for ip in ips],
    }


def this_node(**status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_IP}], **status},
    }


def reaches(address: str = CLUSTER_IP, port: int = 80) -> bool:
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError:
        return False
    return True


class Traffic:
    """Connects to the cluster IP as fast as it can and counts what fails."""

    def __init__(self) -> None:
        self.connections = 0
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                socket.create_connection((CLUSTER_IP, 80), timeout=3).close()
                self.connections += 1
            except OSError as error:
                self.failures.append(str(error))


def test_kill_and_restart_writes_nothing(kproxyd: KproxydProcess, pods: None) -> None:
    kproxyd.write([this_node(), service(), endpoints(*POD_IPS[:2])])
    kproxyd.start()
    before = kproxyd.table()
    generation = kproxyd.ask("status")["generation"]
    kproxyd.kill()
    assert kproxyd.table() == before
    with Traffic() as traffic:
        kproxyd.start()
        eventually(lambda: traffic.connections > 20, "connections")
    assert traffic.failures == []
    # Handles are the kernel's names of objects: equal ones mean that nothing was made anew.
    assert kproxyd.table() == before
    assert kproxyd.ask("status")["generation"] == generation
    assert kproxyd.ask("history", last=10)[-1]["generation"] == generation
    assert kproxyd.ask("verify")["agrees"]


def test_kill_at_any_moment_loses_no_connection(kproxyd: KproxydProcess, pods: None) -> None:
    chance = random.Random(7)
    kproxyd.write([this_node(), service(), endpoints(*POD_IPS)])
    kproxyd.start()
    with Traffic() as traffic:
        for round_number in range(8):
            for _ in range(chance.randrange(1, 12)):
                kproxyd.write([this_node(), service(), endpoints(*chance.sample(POD_IPS, chance.randrange(1, 4)))])
                # Some of the changes must be on their way when the daemon dies, so only some are waited for.
                if chance.random() < 0.5:
                    kproxyd.in_step()
            kproxyd.kill()
            wanted = chance.sample(POD_IPS, chance.randrange(1, 4))
            kproxyd.write([this_node(), service(), endpoints(*wanted)])
            kproxyd.start()
            assert sorted(one["endpoint"] for one in kproxyd.ask("backends")) == sorted(f"{ip}:{PORT}" for ip in wanted)
            assert kproxyd.ask("verify")["agrees"], f"round {round_number}"
    assert traffic.connections > 100
    assert traffic.failures == []


def test_sigterm_leaves_the_tables(kproxyd: KproxydProcess, pods: None) -> None:
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    kproxyd.start()
    before = kproxyd.table()
    assert kproxyd.kill(signal.SIGTERM) == 0
    assert kproxyd.table() == before
    assert reaches()
    with pytest.raises(DaemonDown, match="systemctl start kproxyd"):
        kproxyd.ask("status")


def test_a_flush_by_the_host_firewall_is_repaired_and_told(kproxyd: KproxydProcess, node: NetworkNamespace) -> None:
    case = CASES / "14-host-flush-ruleset"
    kproxyd.write(list(yaml.safe_load_all((case / "objects.yaml").read_text())))
    kproxyd.start()
    before = kproxyd.content()
    node.run(["nft", "-f", str(case / "host-firewall.nft")])
    firewall = node.run(["nft", "list", "table", "inet", "host_fw"])
    eventually(lambda: kproxyd.ask("status")["foreignRepairs"] == 1, "the repair", limit_seconds=5.0)
    assert kproxyd.content() == before
    assert node.run(["nft", "list", "table", "inet", "host_fw"]) == firewall
    repair = kproxyd.ask("history", last=1)[0]
    assert repair["action"] == "repair"
    assert "kproxy, by nft" in repair["causes"][0]
    assert "something else had altered our tables" in kproxyd.last_words()


@pytest.mark.parametrize(
    "damage",
    [
        "delete table ip kproxy",
        "delete table ip6 kproxy",
        "flush chain ip kproxy nat-prerouting",
        "flush map ip kproxy services",
    ],
)
def test_partial_damage_is_repaired(kproxyd: KproxydProcess, node: NetworkNamespace, pods: None, damage: str) -> None:
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    kproxyd.start()
    before = kproxyd.content()
    node.run(["nft", damage])
    eventually(lambda: kproxyd.ask("status")["foreignRepairs"] == 1, "the repair", limit_seconds=5.0)
    assert kproxyd.content() == before
    assert reaches()


def test_foreign_tables_are_none_of_our_business(kproxyd: KproxydProcess, node: NetworkNamespace) -> None:
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    kproxyd.start()
    before = kproxyd.table()
    node.run(["nft", "add table inet other; add set inet other s { type ipv4_addr; elements = { 192.0.2.1 } }"])
    # An own change made afterwards shows that the daemon has read the notifications before it.
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0]), service("late", "10.96.7.8")])
    eventually(lambda: len(kproxyd.ask("services")) == 2, "the later change")
    assert kproxyd.ask("status")["foreignRepairs"] == 0
    assert kproxyd.table() != before
    assert [one["action"] for one in kproxyd.ask("history", last=10)] == ["start", "sync"]


def test_commits_that_fail_are_told_and_retried_until_they_succeed(
    kproxyd: KproxydProcess, node: NetworkNamespace, pods: None
) -> None:
    kproxyd.config["nftables"] = {"syncPeriod": "100ms"}
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    kproxyd.start()
    owner = own_tables(node, (4, 6))
    try:
        kproxyd.write([this_node(), service(), endpoints(POD_IPS[1])])
        status = eventually(lambda: (now := kproxyd.ask("status"))["failing"] and now, "a failed commit")
        assert not status["inStep"]
        assert status["lastError"]
        eventually(lambda: get(10256, "/livez").status == 503, "the daemon to call itself late")
    finally:
        owner.close()
    eventually(kproxyd.in_step, "the commit to succeed without another event", limit_seconds=40.0)
    assert get(10256, "/livez").status == 200
    assert [one["endpoint"] for one in kproxyd.ask("backends")] == [f"{POD_IPS[1]}:{PORT}"]
    assert reaches()


def test_nothing_is_touched_before_the_first_lists(kproxyd: KproxydProcess, pods: None) -> None:
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    kproxyd.start()
    before = kproxyd.table()
    kproxyd.kill()
    kproxyd.config["kproxy"]["source"] = f"manifests:{kproxyd.folder / 'not-there-yet'}"
    kproxyd.start(wait=False)

    def waiting() -> Any:
        try:
            return kproxyd.ask("status")["waitingFor"]
        except DaemonDown:
            return None

    assert eventually(waiting, "an answer") == ["Service", "EndpointSlice", "Node", "ServiceCIDR"]
    with pytest.raises(Refused, match="nothing can be compared yet"):
        kproxyd.ask("verify")
    assert kproxyd.table() == before
    assert reaches()
    assert get(10256, "/livez").status == 200
    assert get(10256, "/healthz").status == 503
    kproxyd.manifests.rename(kproxyd.folder / "not-there-yet")
    eventually(kproxyd.in_step, "the folder to be read")
    assert kproxyd.table() == before


def test_one_bad_object_costs_only_itself(kproxyd: KproxydProcess, pods: None) -> None:
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0]), service("bad", "10.96.300.1")])
    kproxyd.start()
    assert reaches()
    (refused,) = kproxyd.ask("status")["refused"]
    assert refused.startswith("Service shop/bad: ")
    assert b'kproxy_refused_objects{kind="Service"} 1.0' in get(10249, "/metrics").body
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0]), service("bad", "10.96.30.1")])
    eventually(lambda: not kproxyd.ask("status")["refused"], "the refusal to be forgotten")
    # A version that cannot be used leaves the last good one in force.
    kproxyd.write([this_node(), service(cluster_ip="nonsense"), endpoints(POD_IPS[0])])
    eventually(lambda: kproxyd.ask("status")["refused"], "the refusal")
    assert reaches()


def test_health_check_ports_follow_the_local_endpoints(kproxyd: KproxydProcess) -> None:
    balanced = service(
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=32080,
        ports=[{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 31080}],
    )
    kproxyd.write([this_node(), balanced, endpoints(POD_IPS[0])])
    kproxyd.start()
    eventually(lambda: listens(32080, NODE_IP), "the port to open")
    page = get(32080, address=NODE_IP)
    assert (page.status, json.loads(page.body)["localEndpoints"]) == (200, 1)
    assert not listens(32080, POD_IPS[0]), "NodePorts are served on the primary address only"
    kproxyd.write([this_node(), balanced, endpoints()])
    eventually(lambda: get(32080, address=NODE_IP).status == 503, "503 without endpoints")
    kproxyd.write([this_node(), service(), endpoints(POD_IPS[0])])
    eventually(lambda: not listens(32080, NODE_IP), "the port to close")


def test_a_health_check_port_opens_when_its_address_arrives(kproxyd: KproxydProcess, node: NetworkNamespace) -> None:
    kproxyd.config["nodePortAddresses"] = ["198.51.100.0/24"]
    balanced = service(
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=32080,
        ports=[{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 31080}],
    )
    kproxyd.write([this_node(), balanced, endpoints(POD_IPS[0])])
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
    assert kproxyd.process.wait(15) == 0
    manager.close()


def test_a_hung_daemon_is_not_reported_alive(kproxyd: KproxydProcess) -> None:
    manager = NotifySocket(kproxyd.folder)
    kproxyd.write([this_node()])
    kproxyd.start(environment={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "300000"})
    assert kproxyd.process is not None
    manager.wait_for("WATCHDOG")
    kproxyd.process.send_signal(signal.SIGSTOP)
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
            client.settimeout(5)
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
    assert kproxyd.process.wait(15) == 2
    assert words in kproxyd.last_words()
