# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Real connections from this network namespace or from a pod's: many at once, so that a burst costs one timeout."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError, NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.routes import route_to

_CLONE_NEWNET = 0x40000000
# socket.IPPROTO_SCTP is not in every build of Python, its number is the same on every Linux.
_IPPROTO_SCTP = 132
_SO_COOKIE = 57
_KINDS = {
    "TCP": (socket.SOCK_STREAM, socket.IPPROTO_TCP),
    "UDP": (socket.SOCK_DGRAM, socket.IPPROTO_UDP),
    "SCTP": (socket.SOCK_STREAM, _IPPROTO_SCTP),
}
_PROBE = b"kproxy probe\n"
# A rule that rejects answers with a reset or an ICMP error; to a socket of this host it may also say EPERM at once.
_REFUSALS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM, errno.ECONNRESET)
_PENDING = (errno.EINPROGRESS, errno.EAGAIN)

CONNECTED = "connected"
SENT = "sent"
REFUSED = "refused"
SILENCE = "silence"

T = TypeVar("T")


class DialError(Exception):
    """A connection could not even be tried; the message says why."""


class ProtocolMissing(DialError):
    """The kernel does not speak the protocol."""


class Dialled(NamedTuple):
    """How one connection went: connected, sent (UDP without an answer), refused at once, or silence.

    source and source_port: this end of the connection. inode and cookie: of its socket, which no other has.
    """

    result: str
    source: str
    source_port: int
    inode: int
    cookie: int


class Attempt:
    """One connection under way."""

    def __init__(self, address: str, port: int, protocol: str) -> None:
        """Begin. Raises DialError if it cannot even be tried."""
        self._goal, self._datagrams = f"{address} port {port}", protocol == "UDP"
        self.result = SENT if self._datagrams else SILENCE
        self.settled = False
        self.socket = _open(address, protocol)
        try:
            code = self.socket.connect_ex((address, port))
            if code == 0 and self._datagrams:
                self.socket.send(_PROBE)
        except OSError as error:
            code = error.errno or 0
        if code == 0:
            self._settle(self.result if self._datagrams else CONNECTED, not self._datagrams)
        elif code not in _PENDING:
            try:
                self._fail(code)
            except DialError:
                self.socket.close()
                raise

    def look(self) -> None:
        """Take what has happened to the socket."""
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._fail(code)
        elif self._datagrams:
            try:
                self.socket.recv(2048)
            except OSError as error:
                if error.errno not in _PENDING:
                    self._fail(error.errno or 0)
                return
            self._settle(CONNECTED)
        else:
            self._settle(CONNECTED)

    def dialled(self) -> Dialled:
        """Return how it went so far."""
        source, source_port = self.socket.getsockname()[:2]
        (cookie,) = struct.unpack("=Q", self.socket.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8))
        return Dialled(self.result, source, source_port, os.fstat(self.socket.fileno()).st_ino, cookie)

    def _settle(self, result: str, settled: bool = True) -> None:
        self.result, self.settled = result, settled

    def _fail(self, code: int) -> None:
        if code == errno.ETIMEDOUT:
            self._settle(SILENCE)
        elif code in _REFUSALS:
            self._settle(REFUSED)
        else:
            raise DialError(f"cannot dial {self._goal}: {os.strerror(code)}")


def _open(address: str, protocol: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        made = socket.socket(family, *_KINDS[protocol])
    except OSError as error:
        if error.errno in (errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
            raise ProtocolMissing(f"this kernel does not speak {protocol}") from error
        raise DialError(f"cannot open a socket: {error.strerror}") from error
    made.setblocking(False)
    return made


@contextmanager
def burst(
    namespace: str, address: str, port: int, protocol: str, count: int, timeout_seconds: float
) -> Iterator[list[Dialled]]:
    """Open connections at once, wait until each has met something or the time is up, and close them at the end.

    UDP sends one datagram each and waits for an answer or a refusal. The sockets stay open inside the block, so that
    the kernel can still be asked about them.

    Raises:
        DialError: one could not even be tried.
    """
    attempts: list[Attempt] = []
    try:
        within(namespace, lambda: attempts.extend(Attempt(address, port, protocol) for _number in range(count)))
        _wait(attempts, timeout_seconds)
        yield [attempt.dialled() for attempt in attempts]
    finally:
        for attempt in attempts:
            attempt.socket.close()


def _wait(attempts: list[Attempt], timeout_seconds: float) -> None:
    """Return when all have settled, or the time is up."""
    poll = select.poll()
    waiting = {attempt.socket.fileno(): attempt for attempt in attempts if not attempt.settled}
    for number, attempt in waiting.items():
        poll.register(number, select.POLLIN if attempt.result == SENT else select.POLLOUT)
    deadline = time.monotonic() + timeout_seconds
    while waiting:
        left = deadline - time.monotonic()
        ready = poll.poll(max(0.0, left) * 1000)
        for number, _events in ready:
            waiting[number].look()
            if waiting[number].settled:
                poll.unregister(number)
                del waiting[number]
        if left <= 0:
            return


def source_for(address: str) -> str:
    """Return the address a connection would come from. Sends nothing. Raises DialError if there is no way."""
    try:
        source = route_to(address).source
    except NetlinkError as error:
        raise DialError(f"no route to {address}: {os.strerror(error.errno)}") from error
    if not source:
        raise DialError(f"no address here from which {address} could be dialled")
    return source


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
        except (DialError, KernelError, OSError) as error:
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
