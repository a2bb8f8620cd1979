# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Sets of port numbers, as the kernel's ``ip_local_reserved_ports`` and kube-proxy's port ranges write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

HIGHEST_PORT = 65535


class PortRange(NamedTuple):
    """An inclusive range of port numbers."""

    first: int
    last: int

    def overlaps(self, other: PortRange) -> bool:
        """Whether the two ranges share a port."""
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        """Write the range the way the kernel prints it."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def parse_range(text: str) -> PortRange:
    """Parse ``30000-32767``, ``30000+2767`` (kube-proxy writes both), ``8080`` or ``1024 65535`` (sysctl).

    Raises:
        ValueError: the text is none of these, or a number is no port.
    """
    for separator in ("-", "+", None):
        parts = text.split(separator) if separator else text.split()
        if len(parts) == 2:
            break
    if len(parts) not in (1, 2) or not all(part.strip().isdigit() for part in parts):
        raise ValueError(f"{text!r} is not a port range such as 30000-32767")
    first = int(parts[0])
    last = int(parts[-1]) + (first if separator == "+" and len(parts) == 2 else 0)
    if not 0 < first <= last <= HIGHEST_PORT:
        raise ValueError(f"{text!r} is not a port range such as 30000-32767")
    return PortRange(first, last)


def parse_set(text: str) -> list[PortRange]:
    """Parse a comma-separated list of ports and ranges; an empty text is an empty set."""
    return merge(parse_range(part) for part in text.split(",") if part.strip())


def merge(ranges: Iterable[PortRange]) -> list[PortRange]:
    """Return the ranges sorted, with those that overlap or touch joined."""
    merged: list[PortRange] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1].last + 1:
            merged[-1] = PortRange(merged[-1].first, max(last, merged[-1].last))
        else:
            merged.append(PortRange(first, last))
    return merged


def covers(ranges: Iterable[PortRange], wanted: PortRange) -> bool:
    """Whether one of the merged ``ranges`` holds every port of ``wanted``."""
    return any(first <= wanted.first and wanted.last <= last for first, last in ranges)


def format_set(ranges: Iterable[PortRange]) -> str:
    """Write the ranges the way the kernel prints them."""
    return ",".join(map(str, ranges))
