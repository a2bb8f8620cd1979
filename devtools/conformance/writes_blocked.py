"""Make commits fail from outside, as a foreign program can: take the tables over with an owner, or freeze the maps.

A table with the owner flag (linux/netfilter/nf_tables.h, NFT_TABLE_F_OWNER) can be changed only through the netlink
socket that made it, and goes when that socket is closed. A frozen map (BPF_MAP_FREEZE)
can be written by programs only, for as long as it lives.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall
from devtools.conformance.netns import NetworkNamespace

TABLE = "kproxy"
_NETLINK_NETFILTER = 12
_BATCH_BEGIN, _BATCH_END = 16, 17
_SUBSYSTEM = 10 << 8
_NEW_TABLE, _DELETE_TABLE = _SUBSYSTEM | 0, _SUBSYSTEM | 2
_REQUEST, _ACK, _CREATE = 1, 4, 0x400
_TABLE_NAME, _TABLE_FLAGS = 1, 2
_FLAG_OWNER = 2
_FAMILIES = {4: 2, 6: 10}
_ERROR = 2


def own_tables(node: NetworkNamespace, families: Sequence[int]) -> socket.socket:
    """Replace the tables of families by empty ones that only the returned socket may change."""
    with node.entered():
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    sock.settimeout(5)
    messages = [_message(_BATCH_BEGIN, 0, b"", resource=10)]
    for family in families:
        name = _attribute(_TABLE_NAME, TABLE.encode() + b"\0")
        messages.append(_message(_DELETE_TABLE, _FAMILIES[family], name, _ACK))
        flags = _attribute(_TABLE_FLAGS, struct.pack("!I", _FLAG_OWNER))
        messages.append(_message(_NEW_TABLE, _FAMILIES[family], name + flags, _ACK | _CREATE))
    messages.append(_message(_BATCH_END, 0, b"", resource=10))
    sock.send(b"".join(messages))
    for _ in range(2 * len(families)):
        _acknowledged(sock.recv(65536))
    return sock


def freeze_maps(directory: str, families: Sequence[int]) -> None:
    """Let no process write the frontends of these families any more."""
    for family in families:
        for path in Path(directory).glob(f"v*/maps_*/frontends{family}"):
            descriptor = bpf_syscall.get_pinned(str(path))
            bpf_syscall.map_freeze(descriptor)
            os.close(descriptor)


def _message(kind: int, family: int, attributes: bytes, flags: int = 0, resource: int = 0) -> bytes:
    body = struct.pack("!BBH", family, 0, resource) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | flags, 1, 0) + body


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _acknowledged(data: bytes) -> None:
    while data:
        length, kind = struct.unpack("=IH", data[:6])
        if kind == _ERROR:
            (error,) = struct.unpack("=i", data[16:20])
            if error:
                raise OSError(-error, f"take over table {TABLE}: {os.strerror(-error)}")
        data = data[(length + 3) & ~3 :]
