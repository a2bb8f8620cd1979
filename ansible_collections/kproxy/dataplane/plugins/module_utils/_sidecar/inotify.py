# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""inotify through the C library: what changes in a folder, without polling. See inotify(7)."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

MODIFY = 0x00000002
CLOSE_WRITE = 0x00000008
MOVED_FROM = 0x00000040
MOVED_TO = 0x00000080
CREATE = 0x00000100
DELETE = 0x00000200
DELETE_SELF = 0x00000400
MOVE_SELF = 0x00000800
OVERFLOW = 0x00004000
IGNORED = 0x00008000
ONLYDIR = 0x01000000

_HEADER = struct.Struct("iIII")


class FileEvent(NamedTuple):
    """Something happened to `name` in the watched folder; "" is the folder itself."""

    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance; readable (fileno) when events wait."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    @staticmethod
    def _check(result: int, what: str) -> int:
        if result < 0:
            code = ctypes.get_errno()
            hint = "; raise fs.inotify.max_user_instances" if code == errno.EMFILE else ""
            hint = "; raise fs.inotify.max_user_watches" if code == errno.ENOSPC else hint
            raise OSError(code, f"{what}: {os.strerror(code)}{hint}")
        return result

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._handle

    def watch(self, folder: str, mask: int) -> int:
        """Watch a folder and return the watch's number. Raises OSError, e.g. if there is no such folder."""
        return self._check(
            self._libc.inotify_add_watch(self._handle, os.fsencode(folder), mask | ONLYDIR), f"watch {folder}"
        )

    def forget(self, watch: int) -> None:
        """Remove a watch; one that went with its folder is no error."""
        self._libc.inotify_rm_watch(self._handle, watch)

    def read(self) -> list[FileEvent]:
        """Return the events that wait, none if there are none."""
        try:
            data = os.read(self._handle, 64 * 1024)
        except BlockingIOError:
            return []
        return decode(data)

    def close(self) -> None:
        """Release the descriptor and all watches."""
        os.close(self._handle)


def decode(data: bytes) -> list[FileEvent]:
    """Return the events in what the kernel wrote (struct inotify_event)."""
    events = []
    offset = 0
    while offset < len(data):
        watch, mask, _cookie, length = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        name = data[offset : offset + length].rstrip(b"\0")
        events.append(FileEvent(watch, mask, os.fsdecode(name)))
        offset += length
    return events
