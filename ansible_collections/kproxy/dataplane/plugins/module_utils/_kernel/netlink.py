# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Netlink messages and one socket that sends requests, collects dumps and waits for acknowledgements.

Formats: include/uapi/linux/netlink.h. Integers of netlink itself are in host order.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time
from collections.abc import Generator, Iterator
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import DumpInterrupted, NetlinkError

NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_DUMP = 0x300
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
_NLM_F_CAPPED = 0x100
_NLM_F_ACK_TLVS = 0x200

NLMSG_ERROR = 2
NLMSG_DONE = 3

NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF

_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_NETLINK_CAP_ACK = 10
_NETLINK_EXT_ACK = 11
_SO_ATTACH_FILTER = 26
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_NLMSGERR_ATTR_MSG = 1
_NLMSGERR_ATTR_OFFS = 2

HEADER = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")
_ERROR_CODE = struct.Struct("=i")

#: A dump fills whole buffers; the kernel never uses more than 32 KiB of one.
_RECEIVE_BYTES = 1 << 17
#: For so long a dump that changes interrupt is begun again. A ruleset never changes without a pause for that long.
DUMP_PATIENCE_SECONDS = 10.0


class Message(NamedTuple):
    """One received message; `payload` is what follows the netlink header."""

    type: int
    flags: int
    sequence: int
    port: int
    payload: memoryview


class Failure(NamedTuple):
    """One NLMSG_ERROR: errno (0 is an acknowledgement), the kernel's words, and the offset of the attribute meant."""

    sequence: int
    errno: int
    text: str
    offset: int | None


def attribute(kind: int, value: bytes) -> bytes:
    """Return one attribute, padded to four bytes."""
    return ATTRIBUTE.pack(4 + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return one attribute made of attributes."""
    return attribute(kind | NLA_F_NESTED, b"".join(attributes))


def text_attribute(kind: int, value: str) -> bytes:
    """Return one attribute with a NUL-terminated string."""
    return attribute(kind, value.encode() + b"\0")


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Return one message; payload lengths are multiples of four here, so no padding follows."""
    return HEADER.pack(16 + len(payload), kind, flags, sequence, 0) + payload


def attributes(data: memoryview, start: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Yield (type without flags, value) of every attribute in data[start:]; stop at a truncated one."""
    position, end = start, len(data)
    unpack = ATTRIBUTE.unpack_from
    while position + 4 <= end:
        length, kind = unpack(data, position)
        if length < 4 or position + length > end:
            return
        yield kind & NLA_TYPE_MASK, data[position + 4 : position + length]
        position += (length + 3) & ~3


def attribute_map(data: memoryview, start: int = 0) -> dict[int, memoryview]:
    """Return the attributes in data[start:] by type; of repeated ones the last."""
    return dict(attributes(data, start))


def text(value: memoryview) -> str:
    """Return a string attribute's value without its NUL."""
    return bytes(value).rstrip(b"\0").decode("utf-8", "replace")


def messages(data: memoryview) -> Iterator[Message]:
    """Yield the messages of one datagram."""
    position, end = 0, len(data)
    while position + 16 <= end:
        length, kind, flags, sequence, port = HEADER.unpack_from(data, position)
        if length < 16 or position + length > end:
            return
        yield Message(kind, flags, sequence, port, data[position + 16 : position + length])
        position += (length + 3) & ~3


def failure_of(reply: Message) -> Failure:
    """Parse an NLMSG_ERROR with its extended acknowledgement, if the kernel sent one."""
    code = -_ERROR_CODE.unpack_from(reply.payload)[0]
    words, offset = "", None
    if reply.flags & _NLM_F_ACK_TLVS:
        start = 20  # error code and the header of the request
        if not reply.flags & _NLM_F_CAPPED:
            (length,) = struct.unpack_from("=I", reply.payload, 4)
            start = 4 + ((length + 3) & ~3)
        for kind, value in attributes(reply.payload, start):
            if kind == _NLMSGERR_ATTR_MSG:
                words = text(value)
            elif kind == _NLMSGERR_ATTR_OFFS:
                (offset,) = struct.unpack("=I", value)
    return Failure(reply.sequence, code, words, offset)


class NetlinkSocket:
    """A netlink socket of one protocol. Not thread-safe: one owner at a time."""

    def __init__(self, protocol: int, groups: int = 0) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            self._socket.bind((0, groups))
            for option in (_NETLINK_CAP_ACK, _NETLINK_EXT_ACK):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[0]
        self._sequence = 0

    def __enter__(self) -> NetlinkSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, for select and poll."""
        return self._socket.fileno()

    def reserve_sequences(self, count: int) -> int:
        """Return the first of `count` sequence numbers that no other request of this socket uses."""
        first = self._sequence + 1
        if first + count > 0x7FFFFFFF:
            first = 1
        self._sequence = first + count - 1
        return first

    def join(self, group: int) -> None:
        """Subscribe to a multicast group."""
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)

    def attach_filter(self, program: bytes) -> None:
        """Attach a classic BPF program (an array of struct sock_filter) that sees every datagram before us."""
        buffer = ctypes.create_string_buffer(program, len(program))
        # struct sock_fprog: count, padding, pointer.
        argument = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, argument)

    def ensure_send_buffer(self, size: int) -> bool:
        """Make one send of `size` bytes possible; False if that is beyond what we may have (user namespaces)."""
        if self.send_limit() >= size:
            return True
        for option in (_SO_SNDBUFFORCE, socket.SO_SNDBUF):
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, option, size)
            except OSError:
                continue
            if self.send_limit() >= size:
                return True
        return False

    def send_limit(self) -> int:
        """Return the largest datagram that can be sent now, in bytes."""
        # netlink_sendmsg refuses what exceeds sk_sndbuf - 32.
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) - 32

    def ensure_receive_buffer(self, size: int) -> None:
        """Ask for a receive buffer of `size` bytes, as far as the kernel grants it."""
        for option in (_SO_RCVBUFFORCE, socket.SO_RCVBUF):
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, option, size)
                return
            except OSError:
                continue

    def send(self, data: bytes, action: str) -> None:
        """Send one datagram; the kernel has worked off the requests in it when this returns.

        Raises:
            NetlinkError: it was not taken, with `action` as the words for what was tried.
        """
        try:
            self._socket.send(data)
        except OSError as error:
            raise NetlinkError(action, error.errno or errno.EIO) from error

    def wait(self, action: str) -> memoryview:
        """Return the next datagram of an answer.

        Raises:
            NetlinkError: ENOBUFS if a part of the answer was lost.
        """
        try:
            return memoryview(self._socket.recv(_RECEIVE_BYTES))
        except OSError as error:
            raise NetlinkError(action, error.errno or errno.EIO) from error

    def receive(self) -> memoryview | None:
        """Return the next datagram that is here already, or None.

        Raises OSError(ENOBUFS) when the kernel had to drop messages since the last call.
        """
        try:
            return memoryview(self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None

    def drain(self) -> None:
        """Throw away what an abandoned request may still have left in the receive queue."""
        while True:
            try:
                if self.receive() is None:
                    return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def request(self, action: str, kind: int, payload: bytes, flags: int = 0) -> list[Message]:
        """Send one request and return its answers up to the acknowledgement.

        Raises:
            NetlinkError: the kernel's error, with `action` as the words for what was tried.
        """
        sequence = self.reserve_sequences(1)
        self.send(message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, sequence, payload), action)
        found: list[Message] = []
        for reply in self._replies(action):
            if reply.sequence != sequence:
                continue
            if reply.type == NLMSG_ERROR:
                failure = failure_of(reply)
                if failure.errno:
                    raise NetlinkError(action, failure.errno, failure.text)
                break
            found.append(reply)
        return found

    def dump(self, action: str, kind: int, payload: bytes) -> list[Message]:
        """Return every message of a dump that no change interrupted; restarts it until that holds.

        Raises:
            NetlinkError: the kernel refused the dump.
            DumpInterrupted: something changed during every attempt for DUMP_PATIENCE_SECONDS.
        """
        deadline = time.monotonic() + DUMP_PATIENCE_SECONDS
        while True:
            try:
                return list(self.stream(action, kind, payload))
            except DumpInterrupted:
                if time.monotonic() > deadline:
                    raise

    def stream(self, action: str, kind: int, payload: bytes) -> Generator[Message, None, None]:
        """Yield the messages of one dump as they come.

        Raises:
            NetlinkError: the kernel refused the dump.
            DumpInterrupted: at the end, after every message: something changed meanwhile, so they may not fit together.
        """
        sequence = self.reserve_sequences(1)
        self.send(message(kind, NLM_F_REQUEST | NLM_F_DUMP, sequence, payload), action)
        replies = (reply for reply in self._replies(action) if reply.sequence == sequence)
        interrupted = ended = False
        try:
            for reply in replies:
                interrupted = interrupted or bool(reply.flags & NLM_F_DUMP_INTR)
                if reply.type not in (NLMSG_DONE, NLMSG_ERROR):
                    yield reply
                    continue
                ended = True
                code = -_ERROR_CODE.unpack_from(reply.payload)[0] if len(reply.payload) >= 4 else 0
                if code in (errno.EINTR, errno.EAGAIN) or (interrupted and not code):
                    raise DumpInterrupted(f"{action}: it changed meanwhile")
                if code:
                    raise NetlinkError(action, code)
                return
        finally:
            # The kernel starts no other dump on this socket before this one was read to its end.
            if not ended:
                for reply in replies:
                    if reply.type in (NLMSG_DONE, NLMSG_ERROR):
                        break

    def _replies(self, action: str) -> Iterator[Message]:
        while True:
            yield from messages(self.wait(action))


def open_or_explain(protocol: int) -> NetlinkSocket:
    """Open a netlink socket, turning a refusal into a NetlinkError that says what is missing."""
    try:
        return NetlinkSocket(protocol)
    except OSError as error:
        code = error.errno or errno.EIO
        raise NetlinkError("open a netlink socket", code, f"protocol {protocol}, user id {os.geteuid()}") from error
