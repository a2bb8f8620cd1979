"""kproxyd on an API server that goes and comes: cases 21 and 25 down to the kernel, in a namespace of the test."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown
from devtools.apiserver import ApiServer
from devtools.apiserver.faults import Hang
from devtools.conformance.netns import NetworkNamespace
from devtools.kproxyd_process import KproxydProcess
from devtools.waiting import eventually
from tests.api.objects import endpoint_slice, node, service

NODE = "n1"


@pytest.fixture
def namespace() -> Iterator[NetworkNamespace]:
    made = NetworkNamespace()
    made.ip(["link set lo up"])
    yield made
    made.close()


@pytest.fixture
def server(namespace: NetworkNamespace) -> Iterator[ApiServer]:
    with ApiServer(network_namespace=namespace.path, listen=[("127.0.0.1", 0)] * 2) as started:
        started.apply(
            node(NODE),
            service("web", clusterIP="10.96.7.7"),
            endpoint_slice("web-1", "10.244.1.5", of="web"),
            service("db", clusterIP="10.96.8.8"),
            endpoint_slice("db-1", "10.244.1.6", of="db"),
        )
        yield started


@pytest.fixture
def kproxyd(namespace: NetworkNamespace, server: ApiServer) -> Iterator[KproxydProcess]:
    daemon = KproxydProcess(namespace, NODE, kproxy={"source": "api"})
    kubeconfig = daemon.folder / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig())
    daemon.config["clientConnection"] = {"kubeconfig": str(kubeconfig)}
    yield daemon
    daemon.close()


def serves(kproxyd: KproxydProcess, *addresses: str) -> bool:
    """Return whether exactly these of the tests' addresses are in the kernel."""
    table = kproxyd.table()
    return {address for address in ("10.96.7.7", "10.96.8.8", "10.96.9.9") if address in table} == set(addresses)


def cut_off(kproxyd: KproxydProcess) -> set[str]:
    """Return the kinds whose source is told not to work; none while the daemon does not answer yet."""
    with contextlib.suppress(DaemonDown):
        return {source["kind"] for source in kproxyd.ask("status")["sources"] if not source["connected"]}
    return set()


def test_case_21_rules_stay_while_no_api_server_answers(kproxyd: KproxydProcess, server: ApiServer) -> None:
    kproxyd.start()
    before = kproxyd.table()
    assert serves(kproxyd, "10.96.7.7", "10.96.8.8")
    kproxyd.kill()
    for listener in server.listeners:
        listener.close()

    kproxyd.start(wait=False)
    eventually(lambda: len(cut_off(kproxyd)) == 4, "kproxyd to have tried")
    assert not kproxyd.in_step()
    assert kproxyd.table() == before, "nothing is written before the first lists"

    server.listeners[0].open()
    eventually(kproxyd.in_step, "kproxyd to be in step")
    assert kproxyd.table() == before, "nothing had changed, so nothing is written"


def test_case_21_first_sync_on_an_empty_kernel_needs_no_cluster_ip(
    kproxyd: KproxydProcess, server: ApiServer, namespace: NetworkNamespace
) -> None:
    kproxyd.start()
    kproxyd.kill()
    namespace.run(["nft", "delete", "table", "ip", "kproxy"])
    kproxyd.start()
    assert serves(kproxyd, "10.96.7.7", "10.96.8.8")


def test_case_25_what_vanished_unseen_leaves_the_kernel(kproxyd: KproxydProcess, server: ApiServer) -> None:
    kproxyd.start()
    server.listeners[0].close()
    server.delete(service("web"), endpoint_slice("web-1", of="web"))
    server.apply(service("new", clusterIP="10.96.9.9"), endpoint_slice("new-1", "10.244.1.7", of="new"))
    server.forget_history()
    server.listeners[0].open()
    eventually(lambda: serves(kproxyd, "10.96.8.8", "10.96.9.9"), "the new list to be in force")


def test_an_api_server_that_does_not_answer_holds_up_no_stop(kproxyd: KproxydProcess, server: ApiServer) -> None:
    """The service manager gives kproxyd ten seconds, four threads wait for an answer for thirty."""
    server.inject(Hang(), verb="list", times=None)
    kproxyd.start(wait=False)
    server.wait_for_requests(lambda log: sum(r.verb == "list" for r in log) >= 4)
    assert kproxyd.kill(signal.SIGTERM, limit_seconds=25.0) == 0
