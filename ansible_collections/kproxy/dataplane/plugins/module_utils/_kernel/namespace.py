# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a function in a network namespace that exists for it alone."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError

_CLONE_NEWNET = 0x40000000


class IsolationError(KernelError):
    """No namespace could be made, or the function in it failed or did not end."""


def unshare_network() -> None:
    """Move this process to a new, empty network namespace.

    Raises:
        OSError: EPERM without CAP_SYS_ADMIN.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare the network namespace: {os.strerror(code)}")


def run_isolated(function: Callable[[], Any], timeout_seconds: float = 60.0) -> Any:
    """Return what the function returns (JSON types only), run by a child in a new network namespace.

    The namespace, with all that the function made in it, ends with the child.

    Raises:
        IsolationError: says why.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _answer(writer, function)
    os.close(writer)
    try:
        raw = _read_all(reader, time.monotonic() + timeout_seconds)
    finally:
        os.close(reader)
        _reap(child)
    if raw is None:
        raise IsolationError(f"the probe in a namespace of its own did not end within {timeout_seconds:g} s")
    try:
        answer = json.loads(raw)
    except ValueError as error:
        raise IsolationError("the probe in a namespace of its own died without an answer") from error
    if "error" in answer:
        raise IsolationError(answer["error"])
    return answer["value"]


def _answer(writer: int, function: Callable[[], Any]) -> None:
    """Run the function, write its answer and end this process; never returns, whatever happens."""
    status = 1
    try:
        try:
            unshare_network()
            answer = {"value": function()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with os.fdopen(writer, "wb") as stream:
            stream.write(json.dumps(answer).encode())
        status = 0
    finally:
        os._exit(status)


def _read_all(reader: int, deadline: float) -> bytes | None:
    """Return everything up to the end of the pipe, None if that did not come before the deadline."""
    chunks: list[bytes] = []
    while True:
        ready, _w, _x = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)


def _reap(child: int) -> None:
    """Wait for the child; one that is still at work after its answer (or without one) is killed."""
    ended, _status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
