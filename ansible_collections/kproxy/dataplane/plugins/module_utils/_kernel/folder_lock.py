# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A lock on a folder between processes that ends with its holder: flock(2)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

#: How long a lock is waited for. Its holders work for seconds; and kproxyd's watchdog ends what hangs for 30 s.
PATIENCE_SECONDS = 15.0
_PAUSE_SECONDS = 0.02


@contextlib.contextmanager
def locked(folder: str, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Keep other processes that ask for the lock of this folder waiting meanwhile.

    patience: seconds. Raises OSError; TimeoutError names who has the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _take(descriptor, folder, patience)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: str, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    "%s: %s holds its lock for %g s already: see what it waits for, or end it"
                    % (folder, _holder(os.fstat(descriptor)), patience)
                ) from None
        # flock(2) has no limit of time but a signal's, which only a main thread may ask for.
        time.sleep(_PAUSE_SECONDS)


def _holder(state: os.stat_result) -> str:
    """Return who has the lock, as far as /proc tells (proc(5), /proc/locks and /proc/PID/stat)."""
    place = "%02x:%02x:%d" % (os.major(state.st_dev), os.minor(state.st_dev), state.st_ino)
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/locks", encoding="ascii") as locks:
            # 1: FLOCK  ADVISORY  WRITE 4711 00:1f:1 0 EOF; who waits has an arrow behind the number.
            held = [line.split() for line in locks]
        (pid,) = {int(fields[4]) for fields in held if fields[1] == "FLOCK" and fields[5] == place}
        with open("/proc/%d/stat" % pid, encoding="utf-8", errors="replace") as stat:
            name, _bracket, rest = stat.read().partition(" (")[2].rpartition(")")
        stopped = ", which is stopped," if rest.split()[0] in "Tt" else ""
        return "process %d (%s)%s" % (pid, name, stopped)
    return "another process"
