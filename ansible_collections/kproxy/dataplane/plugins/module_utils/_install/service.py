# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kproxyd as a systemd service: its state, changing it, and waiting until it says that it is in step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused, ask
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.unit import SOCKET_PATH, UNIT_NAME

# Runs a command and returns its exit code, output and error output.
Runner = Callable[[list[str]], tuple[int, str, str]]

# Between looks at a kproxyd that is up and has lost step, or keeps failing: nothing announces the end of that.
_PAUSE_SECONDS = 0.2
_LOG_LINES = 15


class ServiceError(Exception):
    """systemd refused, or kproxyd did not come into step; the message has what it said last."""


class State(NamedTuple):
    """What systemd knows about the unit."""

    active: bool
    enabled: bool


class Service:
    """The unit kproxyd.service on this node."""

    def __init__(self, run: Runner) -> None:
        """Take how commands are run."""
        self._run = run

    def state(self) -> State:
        """Return the state; a unit that does not exist is neither active nor enabled."""
        active = self._run(["systemctl", "is-active", UNIT_NAME])[1].strip()
        enabled = self._run(["systemctl", "is-enabled", UNIT_NAME])[1].strip()
        return State(active in ("active", "activating", "reloading"), enabled == "enabled")

    def systemd_version(self) -> int:
        """Return systemd's version ("systemd 252 (252.39-1)"), 0 if it does not say."""
        words = self._run(["systemctl", "--version"])[1].split()
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0

    def systemctl(self, *arguments: str) -> None:
        """Run systemctl. Raises ServiceError."""
        code, out, err = self._run(["systemctl", *arguments])
        if code:
            raise ServiceError(f"systemctl {' '.join(arguments)} failed: {(err or out).strip()}")

    def restart(self) -> None:
        """Start anew without waiting; tables and programs stay in force meanwhile."""
        self.systemctl("restart", "--no-block", UNIT_NAME)

    def status(self) -> dict[str, Any] | None:
        """Return what kproxyd says about itself, None while it does not answer."""
        try:
            answer: dict[str, Any] = ask(SOCKET_PATH, "status")
        except (DaemonDown, Refused, ValueError):
            return None
        return answer

    def started(self) -> float | None:
        """Return when the kproxyd that answers was started, by its own clock; None while none answers."""
        status = self.status()
        return None if status is None else _started(status)

    def runs_since(self, seconds: float) -> bool:
        """Whether kproxyd was started after a time (seconds of the epoch); True for one that does not answer."""
        status = self.status()
        return status is None or _started(status) >= seconds

    def wait_in_step(self, seconds: float, former: float | None) -> dict[str, Any]:
        """Wait until kproxyd is in step: not the one that says it was started at ``former``, which is about to end.

        No later time is asked for: clocks of nodes are set back, by hours where the hardware's holds local time.

        Raises:
            ServiceError: it is not within the time; what it waits for, and its last log lines, are in the text.
        """
        deadline = time.monotonic() + seconds
        while True:
            status = self.status()
            fresh = status is not None and _started(status) != former
            if status is not None and fresh and status.get("inStep"):
                return status
            left = deadline - time.monotonic()
            if left <= 0:
                raise ServiceError(f"kproxyd is not in step after {seconds:g} s: {self._why(status)}")
            if fresh or not self._ready_within(left):
                time.sleep(min(left, _PAUSE_SECONDS))

    def _ready_within(self, seconds: float) -> bool:
        """Wait until systemd has the unit active, which it has once kproxyd says READY: when it is first in step.

        A start that is under way already is waited for, not begun anew. False if it failed or took too long.
        """
        return not self._run(["timeout", f"{seconds:.3f}", "systemctl", "start", UNIT_NAME])[0]

    def _why(self, status: dict[str, Any] | None) -> str:
        if status is not None and status.get("lastError"):
            return str(status["lastError"])
        if status is not None and status.get("waitingFor"):
            troubles = [str(source["detail"]) for source in status.get("sources", ()) if source.get("detail")]
            return f"it waits for the first list of {', '.join(status['waitingFor'])}" + "".join(
                f"; {trouble}" for trouble in troubles
            )
        log = self._run(["journalctl", "--no-pager", "-o", "cat", "-u", UNIT_NAME, "-n", str(_LOG_LINES)])[1].strip()
        return f"its log ends with:\n{log}"


def _started(status: dict[str, Any]) -> float:
    started = status.get("startedAt")
    return float(started) if isinstance(started, (int, float)) else 0.0
