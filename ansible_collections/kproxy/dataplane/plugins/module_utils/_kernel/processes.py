# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Find processes that act on this network namespace, by name, from /proc."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import NamedTuple

KUBE_PROXY = "kube-proxy"
#: Programs that run kube-proxy within themselves: k3s, and MicroK8s' kubelite.
EMBEDDING = ("k3s", "kubelite")
# Metrics and health.
_KUBE_PROXY_PORTS = (10249, 10256)
_LISTEN = "0A"


class Listener(NamedTuple):
    address: str
    port: int
    pid: int


def _namespace(pid: str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:  # gone, or not ours to look at
        return None


def _name(pid: str) -> str:
    try:
        first = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
        return os.path.basename(first.decode("utf-8", "replace")) or Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _here() -> list[str]:
    own = _namespace("self")
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and _namespace(pid) == own]


def running(name: str) -> list[int]:
    """Return the process ids of programs of this name in the caller's network namespace.

    A kube-proxy of another namespace (a nested node) is none of this node's business.
    """
    return sorted(int(pid) for pid in _here() if _name(pid) == name)


def _listening_inodes() -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for path, family in (("/proc/self/net/tcp", socket.AF_INET), ("/proc/self/net/tcp6", socket.AF_INET6)):
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] != _LISTEN:
                continue
            packed, _colon, port = fields[1].partition(":")
            # The kernel prints each 32-bit word in host order.
            octets = b"".join(
                struct.pack("=I", int(packed[start : start + 8], 16)) for start in range(0, len(packed), 8)
            )
            found[fields[9]] = (socket.inet_ntop(family, octets), int(port, 16))
    return found


def listeners() -> list[Listener]:
    """Return who listens on TCP in the caller's network namespace; nobody's (pid 0) is one that cannot be seen."""
    inodes = _listening_inodes()
    owners: dict[str, int] = {}
    for pid in _here():
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for descriptor in descriptors:
            try:
                link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            except OSError:
                continue
            if link.startswith("socket:[") and link[8:-1] in inodes:
                owners[link[8:-1]] = int(pid)
    return sorted(Listener(address, port, owners.get(inode, 0)) for inode, (address, port) in inodes.items())


def kube_proxies() -> list[int]:
    """Return the process ids of kube-proxies that work on the caller's network namespace.

    Some distributions run it within a program of theirs: then that program listens on kube-proxy's ports.
    """
    found = set(running(KUBE_PROXY))
    for listener in listeners():
        # k3s writes its command into the place of its name.
        if listener.port in _KUBE_PROXY_PORTS and _name(str(listener.pid)).split(" ")[0] in EMBEDDING:
            found.add(listener.pid)
    return sorted(found)
