# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Run something in every network namespace that a process of this node lives in, or that a container runtime bound."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

_CLONE_NEWNET = 0x40000000
#: Where container runtimes bind the namespaces of pods. Those of processes with more rights than ours show there alone.
_BOUND = ("/run/netns", "/var/run/netns", "/run/docker/netns")
Result = TypeVar("Result")


def in_every_namespace(work: Callable[[], Result]) -> tuple[list[Result], str]:
    """Return what `work` returns in each namespace, and why some could not be entered, empty if all could.

    It runs in a thread of its own, so ours stays where it is.
    """
    found: list[Result] = []
    refusals: list[int] = []

    def visit() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for path in _namespaces():
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # the process has ended
                continue
            try:
                if libc.setns(descriptor, _CLONE_NEWNET) == 0:
                    found.append(work())
                else:
                    refusals.append(ctypes.get_errno())
            finally:
                os.close(descriptor)

    thread = threading.Thread(target=visit, name="namespaces")
    thread.start()
    thread.join()
    why = "%d network namespaces cannot be entered: %s" % (len(refusals), os.strerror(refusals[0])) if refusals else ""
    return found, why


def _namespaces() -> Iterator[str]:
    seen: set[tuple[int, int]] = set()
    candidates = ["/proc/%s/ns/net" % name for name in os.listdir("/proc") if name.isdigit()]
    for folder in _BOUND:
        if os.path.isdir(folder):
            candidates += [os.path.join(folder, name) for name in os.listdir(folder)]
    for path in candidates:
        try:
            info = os.stat(path)
        except OSError:
            continue
        if (info.st_dev, info.st_ino) not in seen:
            seen.add((info.st_dev, info.st_ino))
            yield path
