# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What kind of file system a path lies on."""

from __future__ import annotations

import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
#: No less than struct statfs has on any 64-bit machine; its first field is the type.
_STATFS_SIZE = 256


def file_system_magic(path: str) -> int:
    """Return f_type of statfs(2), as in include/uapi/linux/magic.h. Raises OSError."""
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)
    return int(struct.unpack_from("=q", buffer.raw)[0]) & 0xFFFFFFFF
