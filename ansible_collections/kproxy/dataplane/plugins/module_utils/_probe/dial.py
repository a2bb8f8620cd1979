# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Real connections from this network namespace or from a pod's."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

_CLONE_NEWNET = 0x40000000
_KINDS = {"TCP": socket.SOCK_STREAM, "UDP": socket.SOCK_DGRAM}
_PROBE = b"kproxy probe\n"

CONNECTED = "connected"
SENT = "sent"
REFUSED = "refused"
SILENCE = "silence"

T = TypeVar("T")


class DialError(Exception):
    """A connection could not even be tried; the message says why."""


class Dialled(NamedTuple):
    """How one connection went: connected, sent (UDP without an answer), refused at once, or silence.

    source and source_port: this end of the connection.
    """

    result: str
    source: str
    source_port: int


def dial(address: str, port: int, protocol: str, timeout_seconds: float) -> Dialled:
    """Open a TCP connection, or send a datagram and wait for an answer or a refusal. Raises DialError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, _KINDS[protocol]) as connection:
        connection.settimeout(timeout_seconds)
        result = CONNECTED
        try:
            connection.connect((address, port))
            if protocol == "UDP":
                connection.send(_PROBE)
                connection.recv(2048)
        except socket.timeout:
            result = SENT if protocol == "UDP" else SILENCE
        except OSError as error:
            if error.errno not in (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EACCES, errno.ECONNRESET):
                raise DialError(f"cannot dial {address} port {port}: {error.strerror or error}") from error
            result = REFUSED
        source, source_port = connection.getsockname()[:2]
        return Dialled(result, source, source_port)


def source_for(address: str, port: int) -> str:
    """Return the address a connection would come from. Sends nothing. Raises DialError if there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError as error:
            raise DialError(f"no route to {address}: {error.strerror or error}") from error
        return str(probe.getsockname()[0])


def within(namespace: str, action: Callable[[], T]) -> T:
    """Return what the action returns when run in a network namespace; "" is the present one.

    Sockets belong to the namespace in which they are made, and a thread can change its own.

    Raises:
        DialError: there is no such namespace, or the action raised it.
    """
    if not namespace:
        return action()
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            enter(namespace)
            results.append(action())
        except (DialError, OSError) as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0] if isinstance(errors[0], DialError) else DialError(f"namespace {namespace}: {errors[0]}")
    return results[0]


def enter(namespace: str) -> None:
    """Move the calling thread to a network namespace, by name as `ip netns` knows it or by path. Raises DialError."""
    path = namespace if "/" in namespace else os.path.join("/run/netns", namespace)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DialError(f"there is no network namespace {namespace}: {error.strerror}") from error
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            raise DialError(f"cannot enter network namespace {namespace}: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(handle)
