# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Find processes that act on this network namespace, by name, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

KUBE_PROXY = "kube-proxy"
#: Programs that run kube-proxy within themselves: k3s, and MicroK8s' kubelite.
EMBEDDING = ("k3s", "kubelite")
# Metrics and health.
_PORTS = (10249, 10256)
_LISTEN = "0A"


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


def _listening_sockets() -> dict[str, int]:
    """Return the ports of this network namespace's listening TCP sockets, by inode."""
    found: dict[str, int] = {}
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(path).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN:
                found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def _listening_ports(pid: str, sockets: Mapping[str, int]) -> Iterator[int]:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
        if link.startswith("socket:[") and link[8:-1] in sockets:
            yield sockets[link[8:-1]]


def kube_proxies() -> list[int]:
    """Return the process ids of kube-proxies that work on the caller's network namespace.

    Some distributions run it within a program of theirs: then that program listens on kube-proxy's ports.
    """
    # k3s writes its command into the place of its name.
    embedding = [pid for pid in _here() if _name(pid).split(" ")[0] in EMBEDDING]
    sockets = _listening_sockets() if embedding else {}
    within = [int(pid) for pid in embedding if any(port in _PORTS for port in _listening_ports(pid, sockets))]
    return sorted({*running(KUBE_PROXY), *within})
