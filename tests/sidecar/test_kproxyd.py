"""The daemon as a process on a real kernel: restarts, foreign changes, failures.

One namespace is the node. Endpoints are addresses of the node itself, so that a connection from the node to a cluster
IP runs through the tables and ends at a listener of this test.
"""

from __future__ import annotations

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
from devtools.http_probe import get
from devtools.kproxyd_process import KproxydProcess
from devtools.waiting import eventually
from tests.sidecar.one_node import CLUSTER_IP, POD_IPS, PORT, endpoints, service, this_node

CASES = Path(__file__).resolve().parents[1] / "cases"


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

    threads = [threading.Thread(target=drain, args=(listener,), daemon=True) for listener in listeners]
    for thread in threads:
        thread.start()
    yield
    for listener, thread in zip(listeners, threads, strict=True):
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def reaches(address: str = CLUSTER_IP, port: int = 80) -> bool:
    try:
        socket.create_connection((address, port), timeout=60).close()
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
                socket.create_connection((CLUSTER_IP, 80), timeout=60).close()
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
    eventually(lambda: kproxyd.ask("status")["foreignRepairs"] == 1, "the repair")
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
    eventually(lambda: kproxyd.ask("status")["foreignRepairs"] == 1, "the repair")
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
    eventually(kproxyd.in_step, "the commit to succeed without another event")
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


def test_a_second_one_names_the_first_and_leaves_all_to_it(kproxyd: KproxydProcess) -> None:
    """Each would write by books of its own; with eBPF, connections were led to endpoints of other Services."""
    kproxyd.write([this_node(), service(), endpoints(*POD_IPS)])
    kproxyd.start()
    before = kproxyd.table()
    assert kproxyd.process is not None
    second = KproxydProcess(kproxyd.namespace, kproxy={"stateDirectory": str(kproxyd.folder / "state")})
    try:
        second.start(wait=False)
        assert second.process is not None
        assert second.process.wait(60) == 1
        assert "another kproxyd runs; end it first" in second.last_words()
        assert f"process {kproxyd.process.pid} (" in second.last_words()
    finally:
        second.close()
    assert kproxyd.in_step()
    assert kproxyd.table() == before
    # A process that was killed claims nothing.
    kproxyd.kill()
    kproxyd.start()
