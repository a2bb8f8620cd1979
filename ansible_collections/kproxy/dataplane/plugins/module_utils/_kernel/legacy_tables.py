# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The chains of legacy iptables, asked of the kernel where the host lacks the tools that show them.

A container brings its own iptables, so the host may have neither legacy nor nft tools and hold rules of both. What nft
holds netlink tells (`ruleset_survey`); legacy tables are read as the tools do (struct ipt_get_entries of
linux/netfilter_ipv4/ip_tables.h, and its IPv6 twin).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError

_GET_INFO, _GET_ENTRIES = 64, 65
_ATTEMPTS = 10
#: struct ipt_getinfo: name, valid hooks, five entries and five underflows, count of entries, their size in bytes.
_INFO = struct.Struct("=32s11III")
#: struct ipt_get_entries: name and size; what follows is aligned to eight bytes.
_HEAD = struct.Struct("=32sI4x")
_OFFSETS = struct.Struct("=HH")
#: struct xt_entry_target: size and name; a user's chain begins with the target ERROR, behind which its name is.
_TARGET_NAME, _TARGET_BYTES, _ERROR_NAME_BYTES = slice(2, 31), 32, 30


class _Family(NamedTuple):
    """domain, level: of the socket. names: where the tables in use are. offsets: where an entry tells of its parts."""

    domain: int
    level: int
    names: str
    offsets: int


_FAMILIES = {
    4: _Family(socket.AF_INET, socket.IPPROTO_IP, "ip_tables_names", 88),
    6: _Family(socket.AF_INET6, socket.IPPROTO_IPV6, "ip6_tables_names", 140),
}


def chain_names(family: int) -> list[tuple[str, str]]:
    """Return table and name of each chain that is not built in; none where nobody uses legacy tables.

    Raises:
        KernelError: the kernel does not tell.
    """
    own = _FAMILIES[family]
    try:
        return _read(own)
    except OSError as error:
        raise KernelError(f"the tables of legacy iptables cannot be read: {error}") from error


def _read(own: _Family) -> list[tuple[str, str]]:
    try:
        with open(f"/proc/thread-self/net/{own.names}", encoding="ascii") as stream:
            tables = stream.read().split()
    except FileNotFoundError:  # the kernel has no legacy tables, or nobody has loaded them
        return []
    with socket.socket(own.domain, socket.SOCK_RAW, socket.IPPROTO_RAW) as connection:
        return [
            (table, chain) for table in tables for chain in chains_of(_entries(connection, own, table), own.offsets)
        ]


def chains_of(entries: bytes, offsets: int) -> Iterator[str]:
    """Yield the names of the chains that a table's entries begin; an entry's own offsets are at ``offsets`` of it."""
    start = 0
    while start + offsets + _OFFSETS.size <= len(entries):
        target, following = _OFFSETS.unpack_from(entries, start + offsets)
        if not following:
            return
        at = start + target
        if _text(entries[at : at + _TARGET_BYTES][_TARGET_NAME]) == "ERROR":
            name = _text(entries[at + _TARGET_BYTES : at + _TARGET_BYTES + _ERROR_NAME_BYTES])
            if name != "ERROR":  # what closes the table
                yield name
        start += following


def _entries(connection: socket.socket, own: _Family, table: str) -> bytes:
    name = table.encode()
    for _attempt in range(_ATTEMPTS):
        size = _INFO.unpack(_ask(connection, own.level, _GET_INFO, name.ljust(_INFO.size, b"\0")))[-1]
        try:
            return _ask(connection, own.level, _GET_ENTRIES, _HEAD.pack(name, size) + bytes(size))[_HEAD.size :]
        except BlockingIOError:  # another size by now: somebody has changed the table
            continue
    raise OSError(errno.EAGAIN, f"table {table} changed during each of {_ATTEMPTS} attempts")


def _ask(connection: socket.socket, level: int, option: int, question: bytes) -> bytes:
    """Call getsockopt(2) with a buffer that also carries the question, which Python's own cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(question, len(question))
    length = ctypes.c_uint32(len(question))
    if libc.getsockopt(connection.fileno(), level, option, buffer, ctypes.byref(length)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw[: length.value]


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("ascii", "replace")
