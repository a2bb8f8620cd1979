"""Case 26: a sync that fails keeps the changes it carried, and what follows a commit is done all the same.

The loop, the engine and the kernel are real; only the backend's commit fails on the given calls.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import Flow
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftError
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.engine_dataplane import EngineDataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import KINDS, Replaced
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.happenings import Happenings, NoRecorder
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.journal import Journal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.metrics import Metrics
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reporter import Reporter
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sync_loop import SyncLoop
from devtools.conformance.netns import NetworkNamespace

CASE = Path(__file__).resolve().parents[1] / "cases/26-failed-sync-keeps-changes"
UDP = socket.IPPROTO_UDP
STEP_SECONDS = 1000.0


class FailingCommits:
    """Makes the next commits fail, before or after the kernel has taken them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before = 0
        self.after = 0
        real = NftablesBackend.commit

        def commit(backend: NftablesBackend, plan: Any) -> None:
            if self.before:
                self.before -= 1
                raise CommitError("exit 1")
            if self.after:
                self.after -= 1
                # The kernel has it, but nobody lives to hear of it: the planner is not told.
                accept = backend.planner.accept
                monkeypatch.setattr(backend.planner, "accept", lambda _plan: None)
                try:
                    real(backend, plan)
                finally:
                    monkeypatch.setattr(backend.planner, "accept", accept)
                raise CommitError("killed")
            real(backend, plan)

        monkeypatch.setattr(NftablesBackend, "commit", commit)


class Node:
    """One node's loop, driven by hand."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.dataplane = EngineDataplane(ProxyConfig.from_mapping({"nodeName": "n1", "clusterCIDR": "10.244.0.0/16"}))
        self.journal = Journal(folder, 1 << 20)
        self.metrics = Metrics()
        self.reporter = Reporter(self.metrics, self.journal, 30.0, (4, 6), Happenings("n1", NoRecorder()))
        self.loop = SyncLoop(self.dataplane, self.reporter, clock=lambda: self.now)

    def receive(self, name: str) -> None:
        """Let the whole state of a file arrive."""
        objects: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for document in yaml.safe_load_all((CASE / name).read_text()):
            obj = parse(document)
            assert obj is not None
            objects[document["kind"]].append(obj)
        self.loop.take([Replaced(kind, tuple(found)) for kind, found in objects.items()])

    def counted(self, failures: str) -> dict[str, float | None]:
        """Return a counter of failures per family."""
        name = f"kubeproxy_sync_proxy_rules_nftables_{failures}_total"
        read = self.metrics.registry.get_sample_value
        return {family: read(name, {"ip_family": family}) for family in ("IPv4", "IPv6")}

    def pass_time(self) -> None:
        """Let every pause go by."""
        self.now += STEP_SECONDS


def rules() -> str:
    """Return where the kernel leads connections now."""
    done = subprocess.run(["nft", "list", "table", "ip", "kproxy"], capture_output=True, text=True, check=True)
    return done.stdout


def leads_to(*endpoints: str) -> bool:
    listing = rules()
    known = [f"10.244.1.{number}" for number in (151, 152, 153, 161, 162, 163)]
    return [one for one in known if one in listing] == sorted(endpoints)


OLD = ("10.244.1.151", "10.244.1.152", "10.244.1.153")
NEW = ("10.244.1.161", "10.244.1.162", "10.244.1.163")


def stale_flow() -> Flow:
    """A client of service u that talks to the endpoint which the second state removes."""
    pack = socket.inet_aton
    return Flow(4, UDP, pack("10.244.1.9"), pack("10.97.0.3"), 40000, 514, pack("10.244.1.153"), 514)


def tracked() -> list[bytes]:
    with Conntrack() as conntrack:
        return [flow.reply_source for flow in conntrack.flows(4)]


def test_a_failed_sync_keeps_its_changes(
    namespace: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = FailingCommits(monkeypatch)
    node = Node(tmp_path)
    node.receive("objects-1.yaml")
    assert node.loop.step()
    assert leads_to(*OLD)
    with Conntrack() as conntrack:
        conntrack.insert(stale_flow())

    commits.before = 1
    node.receive("objects-2.yaml")
    assert node.loop.step()
    assert leads_to(*OLD), "the rules of the first state stay in force"
    assert (node.loop.failing, node.reporter.last_error) == (1, "exit 1")
    assert socket.inet_aton("10.244.1.153") in tracked()

    # Only service b differs from the second state; a and u come from the sync that failed.
    node.receive("objects-3.yaml")
    node.pass_time()
    assert node.loop.step()
    assert leads_to(*NEW)
    assert (node.loop.failing, node.reporter.last_error) == (0, "")
    assert socket.inet_aton("10.244.1.153") not in tracked(), "cleaning belongs to the change, also to a failed one"
    assert [entry["action"] for entry in node.journal.read(10)] == ["start", "failed", "retry"]

    before = rules()
    node.receive("objects-4.yaml")
    node.loop.step()
    assert rules() == before
    assert [entry["action"] for entry in node.journal.read(10)] == ["start", "failed", "retry"], "nothing was written"


def test_a_change_is_in_force_although_what_it_replaced_cannot_be_removed(
    namespace: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.receive("objects-1.yaml")
    assert node.loop.step()

    def refuse(_backend: NftablesBackend, _plan: Any) -> None:
        raise NftError(["nft"], "1.0.6", 1, "", "Device or resource busy")

    subprocess.run(["nft", "add", "chain", "ip", "kproxy", "strange"], check=True)
    with monkeypatch.context() as patch:
        patch.setattr(NftablesBackend, "_retire", refuse)
        node.receive("objects-3.yaml")
        node.loop.audit_now()
    assert leads_to(*NEW)
    assert node.loop.failing == 1
    assert "in force" in node.reporter.last_error
    assert node.counted("cleanup_failures") == {"IPv4": 1, "IPv6": 1}
    assert node.counted("sync_failures") == {"IPv4": 0, "IPv6": 0}
    node.pass_time()
    assert node.loop.step()
    assert node.loop.failing == 0
    assert "strange" not in rules()


def test_the_retry_needs_no_event(namespace: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = FailingCommits(monkeypatch)
    node = Node(tmp_path)
    node.receive("objects-1.yaml")
    assert node.loop.step()
    commits.before = 3
    node.receive("objects-3.yaml")
    for _ in range(3):
        assert node.loop.step()
        assert leads_to(*OLD)
        node.pass_time()
    assert node.loop.step()
    assert leads_to(*NEW)


def test_a_commit_that_arrived_although_it_failed_is_found_out(
    namespace: NetworkNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = FailingCommits(monkeypatch)
    node = Node(tmp_path)
    node.receive("objects-1.yaml")
    assert node.loop.step()
    with Conntrack() as conntrack:
        conntrack.insert(stale_flow())
    commits.after = 1
    node.receive("objects-3.yaml")
    assert node.loop.step()
    assert node.loop.failing == 1
    assert leads_to(*NEW)
    before = rules()
    node.pass_time()
    assert node.loop.step()
    assert node.loop.failing == 0
    assert rules() == before
    assert socket.inet_aton("10.244.1.153") not in tracked()
    # And the books are right: the next change is a small one and goes through.
    node.receive("objects-1.yaml")
    assert node.loop.step()
    assert leads_to(*OLD)
