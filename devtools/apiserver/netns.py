"""Enter a network namespace in the calling thread, so that only its sockets live there."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

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


@contextlib.contextmanager
def inside(network_namespace: str | None) -> Iterator[None]:
    """Create sockets in another network namespace for the length of the block (this thread only)."""
    if network_namespace is None:
        yield
        return
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter(network_namespace)
        try:
            yield
        finally:
            enter_handle(home)
    finally:
        os.close(home)
