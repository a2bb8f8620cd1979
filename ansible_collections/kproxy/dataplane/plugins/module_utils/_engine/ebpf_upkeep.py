# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the eBPF backend must do between changes of objects: follow devices and addresses, remove ended flows."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import threading
import time

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import NETLINK_ROUTE, open_or_explain

LOG = logging.getLogger("kproxyd")

_LINK, _IPV4_IFADDR, _IPV6_IFADDR = 1, 5, 9
#: Seconds between two looks for flows that have ended, and the longest that a lost notification goes unnoticed.
COLLECT_SECONDS = 5.0


class EbpfUpkeep:
    """A thread beside the engine's, in the same network namespace; the backend's own lock keeps them apart."""

    def __init__(self, backend: EbpfBackend) -> None:
        """Subscribe at once, so that nothing is missed before start(). Raises KernelError."""
        self._backend = backend
        self._events = open_or_explain(NETLINK_ROUTE)
        for group in (_LINK, _IPV4_IFADDR, _IPV6_IFADDR):
            self._events.join(group)
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="ebpf-upkeep", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        os.write(self._wake_writer, b"x")
        if self._thread.is_alive():
            self._thread.join()
        self._events.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _run(self) -> None:
        deadline = time.monotonic() + COLLECT_SECONDS
        failure = ""
        while True:
            wait = max(0.0, deadline - time.monotonic())
            ready = select.select([self._events.fileno(), self._wake_reader], [], [], wait)[0]
            if self._wake_reader in ready:
                return
            self._drain()
            # What fails is tried again with the next turn, not at once.
            due = time.monotonic() >= deadline
            if due:
                deadline = time.monotonic() + COLLECT_SECONDS
            try:
                self._backend.upkeep()
                if due:
                    self._backend.collect()
                failure = ""
            except (CommitError, OSError) as error:
                if str(error) != failure:
                    failure = str(error)
                    LOG.warning("the eBPF maps could not follow the node: %s", error)
            except Exception as error:
                # A fault of ours: a thread that died silently would leave every device to come without programs.
                if repr(error) != failure:
                    failure = repr(error)
                    LOG.exception("unexpected failure while following the node")

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                try:
                    if self._events.receive() is None:
                        return
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
