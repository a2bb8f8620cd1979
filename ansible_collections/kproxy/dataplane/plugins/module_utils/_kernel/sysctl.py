# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read kernel settings by their sysctl names."""

from __future__ import annotations

import os
from collections.abc import Iterable

_ROOT = "/proc/sys"


def path_of(name: str, root: str = _ROOT) -> str:
    """Return the file of a setting. As with sysctl(8), a slash stands for a dot inside a component.

    >>> path_of("net.ipv4.conf.eth0/100.rp_filter")
    '/proc/sys/net/ipv4/conf/eth0.100/rp_filter'
    """
    return os.path.join(root, name.translate(str.maketrans("./", "/.")))


def read(name: str, root: str = _ROOT) -> str | None:
    """Return a setting's value with single blanks between its words; None if this kernel has no such setting."""
    try:
        with open(path_of(name, root), encoding="utf-8") as file:
            return " ".join(file.read().split())
    except OSError:
        return None


def read_all(names: Iterable[str], root: str = _ROOT) -> dict[str, str]:
    """Return the values of those settings that exist."""
    values = ((name, read(name, root)) for name in names)
    return {name: value for name, value in values if value is not None}


def writable(name: str, root: str = _ROOT) -> bool:
    """Tell whether the setting exists and could be written by us: not where /proc/sys is read-only (containers)."""
    return os.access(path_of(name, root), os.W_OK)
