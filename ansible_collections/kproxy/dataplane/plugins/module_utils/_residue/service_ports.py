# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read ports written as `31190/tcp`."""

from __future__ import annotations

from collections.abc import Iterable

_PROTOCOLS = ("tcp", "udp", "sctp")


def parse(text: str) -> tuple[str, int]:
    """Return (protocol, port). Raises ValueError that names the text."""
    port, _slash, protocol = text.partition("/")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or protocol.lower() not in _PROTOCOLS:
        raise ValueError(f"{text!r} is not a port; write it as 31190/tcp")
    return protocol.lower(), int(port)


def parse_all(texts: Iterable[str]) -> frozenset[tuple[str, int]]:
    """Return all of them."""
    return frozenset(parse(text) for text in texts)
