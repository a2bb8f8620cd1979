"""kproxyd itself as the product under test: the daemon's own process, fed with a folder of manifests.

Health check ports, the loopback relay, metrics and connection table cleaning are then the daemon's, not a stand-in's.
A step has arrived when the daemon answers for a canary Service that changes in the same file, and no commit fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devtools.conformance import own_health, writes_blocked
from devtools.conformance.corpus import Case, ObjectKey
from devtools.conformance.facts import HttpResponse
from devtools.conformance.manifests import settings
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.product import Manifests

ROOT = Path(__file__).resolve().parents[2]
MODULE = "ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.main"
MODES = {"nft": "nftables", "ebpf": "ebpf"}
# Long enough for a machine where everything else runs as well.
START_SECONDS, STEP_SECONDS = 60.0, 45.0
_PR_SET_PDEATHSIG = 1

CANARY_ADDRESS = "192.0.0.170"
"""From the range of IPv4 special purposes (RFC 7050): no case uses it for a Service."""
_FIRST_CANARY_PORT = 1000

LATE_SYNC_PERIOD_SECONDS = 0.5


class Kproxyd:
    """One daemon for one case."""

    def __init__(self, backend: str, extra: Mapping[str, Any] | None = None, restart: bool = False) -> None:
        """extra: more keys of the configuration's "kproxy" section. restart: each step finds the daemon killed."""
        self._restart = restart
        self._extra = dict(extra or {})
        self._mode = MODES[backend]
        self._folder = Path(tempfile.mkdtemp(prefix="kp-conformance-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._step = 0
        self._case: Case | None = None
        self._node: NetworkNamespace | None = None

    def start(self, case: Case, node: NetworkNamespace, objects: Manifests) -> None:
        self._case, self._node = case, node
        (self._folder / "manifests").mkdir()
        (self._folder / "kproxyd.json").write_text(json.dumps(self._config(case)))
        self._write(objects)
        self.run()
        if case.proxy_state is not None and case.proxy_state["pending_update_age_seconds"]:
            self._fall_behind(case.proxy_state, objects)

    def run(self) -> None:
        """Start the daemon on what is configured and written; return when it is in step."""
        assert self._node is not None, "start() comes first"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, "--config", str(self._folder / "kproxyd.json")],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=_child_setup(self._node),
            )
        self._wait(START_SECONDS)

    def apply(self, changed: Manifests, deleted: Sequence[ObjectKey], objects: Manifests) -> None:
        self._step += 1
        if self._restart:
            self.kill(signal.SIGKILL)
        self._write(objects)
        if self._restart:
            self.run()
        else:
            self._wait(STEP_SECONDS)

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        assert self._case is not None, "start() comes first"
        return own_health.proxy_health(check, self._case.node)

    def stop(self) -> None:
        self.kill(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self, number: signal.Signals) -> None:
        """End the process; its tables stay."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, command: str, **arguments: str) -> Any:
        """Ask over the control socket what kproxyctl asks; None while there is no answer."""
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as sock:
            sock.settimeout(STEP_SECONDS)
            try:
                sock.connect(str(self._folder / "kproxyd.sock"))
                sock.sendall(json.dumps({"version": 1, "command": command, **arguments}).encode() + b"\n")
                with sock.makefile("rb") as answers:
                    answer = json.loads(answers.readline() or b"{}")
            except OSError:
                return None
        return answer.get("result") if answer.get("ok") else None

    # -- inputs ------------------------------------------------------------------------------------------------------

    def _config(self, case: Case) -> dict[str, Any]:
        values = settings(case)
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": self._mode,
            "kproxy": {
                "nodeName": values.pop("nodeName"),
                "source": f"manifests:{self._folder / 'manifests'}",
                "socketPath": str(self._folder / "kproxyd.sock"),
                "stateDirectory": str(self._folder / "state"),
                **self._extra,
            },
            "nftables": {"masqueradeAll": values.pop("masqueradeAll", False)},
            **values,
        }
        if case.proxy_state is not None:
            config["nftables"]["syncPeriod"] = f"{int(LATE_SYNC_PERIOD_SECONDS * 1000)}ms"
        return config

    def _write(self, objects: Manifests) -> None:
        """Put all objects in place at once: one batch for the daemon."""
        document = {"apiVersion": "v1", "kind": "List", "items": [*objects, _canary(self._step)]}
        draft = self._folder / "manifests" / ".objects"
        draft.write_text(json.dumps(document))
        draft.rename(self._folder / "manifests" / "objects.json")

    def _wait(self, seconds: float) -> None:
        wanted = _FIRST_CANARY_PORT + self._step
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"kproxyd ended with {self._process.returncode}: {self._last_words()}")
            shown = self.ask("show", namespace="kproxy-canary", service="canary")
            if shown is not None and any(row["portNumber"] == wanted for row in shown["frontends"]):
                status = self.ask("status") or {}
                if status.get("inStep"):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"the step is not in force after {seconds:.0f} s: {self._last_words()}")

    def _last_words(self) -> str:
        lines = (self._folder / "log").read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])

    def _fall_behind(self, state: Mapping[str, Any], objects: Manifests) -> None:
        """Let updates stay unapplied for the given share of the sync period: somebody else owns the tables."""
        assert self._node is not None, "start() comes first"
        families = [4 if name == "IPv4" else 6 for name in state["pending_update_age_seconds"]]
        if self._mode == "ebpf":
            writes_blocked.freeze_maps(self._extra["bpfDirectory"], families)
        else:
            self._blocked = writes_blocked.own_tables(self._node, families)
        self._step += 1
        self._write(objects)
        periods = max(state["pending_update_age_seconds"].values()) / state["sync_period_seconds"]
        # The age is the condition itself. The exact limit cannot be hit, so a case must not be on it.
        time.sleep(periods * LATE_SYNC_PERIOD_SECONDS + 0.1)


def _canary(step: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "kproxy-canary", "name": "canary"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": CANARY_ADDRESS,
            "clusterIPs": [CANARY_ADDRESS],
            "ports": [{"port": _FIRST_CANARY_PORT + step, "protocol": "TCP"}],
        },
    }


def _child_setup(node: NetworkNamespace) -> Callable[[], None]:
    join = node.joiner()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def setup() -> None:
        join()
        # Not to outlive a killed run.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return setup
