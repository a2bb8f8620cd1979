"""kproxyd as a process in a namespace, fed with a folder of manifests."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused, ask
from devtools.conformance.netns import NetworkNamespace
from devtools.waiting import eventually

ROOT = Path(__file__).resolve().parents[1]
MODULE = "ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.main"
# On a machine where everything else runs as well, importing alone takes several seconds.
START_SECONDS = 60.0


class KproxydProcess:
    """One node's daemon; end it with close(), which removes its folder."""

    def __init__(self, namespace: NetworkNamespace, node_name: str = "n1", **config: Any) -> None:
        self.namespace = namespace
        self.folder = Path(tempfile.mkdtemp(prefix="kp-sidecar-"))
        self.manifests = self.folder / "manifests"
        self.manifests.mkdir()
        self.log = self.folder / "log"
        self.config: dict[str, Any] = {
            **config,
            "kproxy": {
                "nodeName": node_name,
                "source": f"manifests:{self.manifests}",
                "socketPath": str(self.folder / "kproxyd.sock"),
                "stateDirectory": str(self.folder / "state"),
                **config.get("kproxy", {}),
            },
        }
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, documents: Sequence[Mapping[str, Any]], name: str = "objects.json") -> None:
        """Put a file of objects in place at once."""
        draft = self.manifests / f".{name}"
        draft.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(documents)}))
        draft.rename(self.manifests / name)

    def start(self, wait: bool = True, environment: Mapping[str, str] | None = None) -> None:
        """Start the daemon and wait until it is in step."""
        (self.folder / "kproxyd.json").write_text(json.dumps(self.config))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, "--config", str(self.folder / "kproxyd.json")],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
                preexec_fn=self.namespace.joiner(),
            )
        if wait:
            try:
                eventually(self.in_step, "kproxyd to be in step", START_SECONDS)
            except AssertionError as error:
                raise AssertionError(f"{error}; its last words: {self.last_words()}") from None

    def kill(self, number: signal.Signals = signal.SIGKILL, limit_seconds: float = START_SECONDS) -> int:
        """End the process; returns how it ended. Raises TimeoutExpired when it takes longer."""
        assert self.process is not None, "not started"
        self.process.send_signal(number)
        code = self.process.wait(limit_seconds)
        self.process = None
        return code

    def stop(self) -> None:
        """Stop the process, and see it stopped: a signal is on its way for a while."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def close(self) -> None:
        """End the process if it runs, and remove its files."""
        if self.process is not None:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, command: str, **arguments: object) -> Any:
        """Ask what kproxyctl asks. Raises DaemonDown or Refused."""
        return ask(self.config["kproxy"]["socketPath"], command, **arguments)

    def in_step(self) -> bool:
        """Return whether the daemon answers and is in step; an ended process is an error."""
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"kproxyd ended with {self.process.returncode}: {self.last_words()}")
        with contextlib.suppress(DaemonDown, Refused):
            return bool(self.ask("status")["inStep"])
        return False

    def last_words(self) -> str:
        """Return the end of the log."""
        return self.log.read_text()[-2000:]

    def table(self, family: str = "ip") -> str:
        """Return our table as nft lists it, with handles: they change when anything is made anew."""
        return self.namespace.run(["nft", "-a", "list", "table", family, "kproxy"])

    def content(self) -> list[str]:
        """Return what both tables hold, in an order that does not depend on when a chain or an element was made."""
        listings = (
            self.namespace.run(["nft", "list", "table", family, "kproxy"]).splitlines() for family in ("ip", "ip6")
        )
        # Elements of one map stand on one or several lines, in the kernel's order. Our own record of a structure's
        # digest differs after a repair, because the kernel may keep an interval set in another way.
        pieces = (piece.strip(" \t,") for listing in listings for line in listing for piece in line.split(", "))
        return sorted(piece for piece in pieces if not piece.startswith("structure "))


class NotifySocket:
    """Plays the service manager: collects what sd_notify sends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(START_SECONDS)

    def receive(self) -> dict[str, str]:
        """Return the fields of the next message; waits for it."""
        lines = self._socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def wait_for(self, field: str) -> str:
        """Return the value of a field as soon as a message has it."""
        while True:
            message = self.receive()
            if field in message:
                return message[field]

    def drain(self) -> None:
        """Throw away what has arrived."""
        self._socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(4096)
        self._socket.settimeout(START_SECONDS)

    def silent_for(self, seconds: float) -> bool:
        """Return whether nothing arrives for so long."""
        return not select.select([self._socket], [], [], seconds)[0]

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
