"""Enter a network namespace in the calling thread, so that only its sockets live there."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNET = 0x40000000


def enter_handle(handle: int) -> None:
    """Move the calling thread into the namespace behind an open file; other threads stay where they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"cannot enter network namespace: {os.strerror(error)}")


def enter(name: str) -> None:
    """Move the calling thread into /run/netns/NAME (`ip netns add` made it), or into the namespace at a path.

    Raises:
        OSError: there is no such namespace, or the caller may not enter it.
    """
    handle = os.open(name if "/" in name else f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_handle(handle)
    finally:
        os.close(handle)
