# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell systemd how the service is doing (sd_notify(3)): a datagram to the socket named by NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping


class Notifier:
    """Sends state to the service manager; does nothing where there is none."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """Read NOTIFY_SOCKET and WATCHDOG_USEC; the latter only counts for the process it names."""
        environment = os.environ if environment is None else environment
        path = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if path else None
        self.watchdog_seconds: float | None = None
        if environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid()):
            microseconds = environment.get("WATCHDOG_USEC", "")
            if microseconds.isdigit() and int(microseconds) > 0:
                self.watchdog_seconds = int(microseconds) / 1_000_000

    def ready(self, status: str) -> None:
        """Report that start-up is complete."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Report one line for systemctl status."""
        self._send(f"STATUS={status}")

    def watchdog(self) -> None:
        """Report a sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the service is on its way out."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        # A manager that does not listen will notice by itself; the node's packets matter more.
        with contextlib.suppress(OSError):
            self._socket.sendto(message.encode(), socket.MSG_DONTWAIT, self._address)
