# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Several addresses of one API server: which to talk to now."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class ServerRing:
    """The servers in the order given, and which of them failed since they last worked. Safe for several threads.

    One server is current for everybody, so that all lists come from the same place and a failure one thread sees
    saves the others the wait. It stays current as long as it works; there is no way back "home" that would break
    working watches.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        if not servers:
            raise ValueError("no API server given")
        self._lock = threading.Lock()
        self._servers = list(dict.fromkeys(servers))
        self._current = 0
        self._failed: set[str] = set()

    @property
    def current(self) -> str:
        """Return the server to use."""
        with self._lock:
            return self._servers[self._current]

    def replace(self, servers: Sequence[str]) -> None:
        """Take a new list of servers; the current one stays if it is still in it."""
        with self._lock:
            current = self._servers[self._current]
            self._servers = list(dict.fromkeys(servers)) or self._servers
            self._current = self._servers.index(current) if current in self._servers else 0
            self._failed &= set(self._servers)

    def worked(self, server: str) -> None:
        """Note that a server answered as it should."""
        with self._lock:
            self._failed.discard(server)

    def failed(self, server: str) -> bool:
        """Note a failure and move on; return whether the new current server deserves a try without a pause.

        False once every server failed since the last one that worked: then it is time to wait.
        """
        with self._lock:
            if server not in self._servers:
                return True  # the list was replaced meanwhile
            self._failed.add(server)
            if server == self._servers[self._current]:
                self._current = (self._current + 1) % len(self._servers)
            if len(self._failed) < len(self._servers):
                while self._servers[self._current] in self._failed:
                    self._current = (self._current + 1) % len(self._servers)
                return True
            self._failed.clear()
            return False
