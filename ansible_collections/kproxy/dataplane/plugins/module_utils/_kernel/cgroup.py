# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The cgroup2 hierarchy: where it is mounted and which directory covers a node's sockets.

A socket belongs to the cgroup of the process that made it. On a node of its own the hierarchy's root covers everything.
"""

from __future__ import annotations

import os
import re

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.file_system import file_system_magic

_CGROUP2_MAGIC = 0x63677270


class NoCgroup2(Exception):
    """There is no cgroup2 mount, or a directory is on none; socket load balancing is impossible there."""


def mount_point(mounts: str = "/proc/self/mountinfo") -> str:
    """Return where cgroup2 is mounted (``/sys/fs/cgroup``, or ``/sys/fs/cgroup/unified`` on hybrid hosts).

    A mount of the whole hierarchy goes before a bind mount of one directory of it, which covers fewer processes.
    Format: proc_pid_mountinfo(5).
    """
    found: list[tuple[bool, str]] = []
    with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            mount, _dash, kind = line.partition(" - ")
            fields = mount.split()
            if len(fields) > 4 and kind.split()[:1] == ["cgroup2"]:
                found.append((fields[3] == "/", _unescaped(fields[4])))
    if not found:
        raise NoCgroup2(
            "no cgroup2 mount in %s: boot with systemd.unified_cgroup_hierarchy=1, or use the nftables backend" % mounts
        )
    return next((path for whole, path in found if whole), found[0][1])


def _unescaped(text: str) -> str:
    """Undo the kernel's octal escapes for space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def open_directory(path: str | None = None) -> int:
    """Open a cgroup directory (default: the root of the hierarchy) for attaching. Raises NoCgroup2, OSError."""
    found = path or mount_point()
    descriptor = os.open(found, os.O_RDONLY | os.O_DIRECTORY)
    if file_system_magic(found) != _CGROUP2_MAGIC:
        os.close(descriptor)
        raise NoCgroup2("%s is no cgroup2 directory" % found)
    return descriptor
