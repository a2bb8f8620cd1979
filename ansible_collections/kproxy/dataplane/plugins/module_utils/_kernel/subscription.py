# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What every watch of the kernel's notifications is: a netlink socket to wait on, open until it is closed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import TypeVar

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import open_or_explain

Watch = TypeVar("Watch", bound="Subscription")


class Subscription:
    """A socket of one netlink protocol; what it is told, and what that means, is a subclass's business."""

    def __init__(self, protocol: int) -> None:
        """Open it. Raises NetlinkError."""
        self._socket = open_or_explain(protocol)

    def __enter__(self: Watch) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unsubscribe."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def _told(self) -> Iterator[memoryview | None]:
        """Yield what has come since the last time, datagram by datagram, and None where some were lost.

        Never blocks. Raises OSError: the kernel does not answer.
        """
        while True:
            try:
                data = self._socket.receive()
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield None
                continue
            if data is None:
                return
            yield data
