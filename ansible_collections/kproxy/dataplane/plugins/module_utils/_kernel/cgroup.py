# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The cgroup2 hierarchy: where it is mounted and which directory covers a node's sockets.

A socket belongs to the cgroup of the process that made it. On a node of its own the hierarchy's root covers everything.
"""

from __future__ import annotations

import os


class NoCgroup2(Exception):
    """There is no cgroup2 mount; socket load balancing is impossible on this host."""


def mount_point(mounts: str = "/proc/self/mounts") -> str:
    """Return where cgroup2 is mounted (``/sys/fs/cgroup``, or ``/sys/fs/cgroup/unified`` on hybrid hosts)."""
    with open(mounts, encoding="utf-8") as lines:
        for line in lines:
            fields = line.split()
            if len(fields) > 2 and fields[2] == "cgroup2":
                return fields[1].replace("\\040", " ")
    raise NoCgroup2("no cgroup2 mount in %s: boot with systemd.unified_cgroup_hierarchy=1, or use the nftables backend"
                    % mounts)


def open_directory(path: str | None = None) -> int:
    """Open a cgroup directory (default: the root of the hierarchy) for attaching."""
    return os.open(path or mount_point(), os.O_RDONLY | os.O_DIRECTORY)
