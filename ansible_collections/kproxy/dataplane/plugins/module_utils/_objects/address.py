# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""IP addresses and prefixes as packed bytes: 4 bytes are IPv4, 16 bytes are IPv6."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.shown import shown

_MAPPED_PREFIX = b"\x00" * 10 + b"\xff\xff"
_DOTTED_QUAD = re.compile(r"0*\d{1,3}(\.0*\d{1,3}){3}", re.ASCII)
_BROADCAST = b"\xff" * 4
_ZEROS = b"\x00" * 15
_PREFIX_LENGTH = re.compile(r"0*\d{1,3}", re.ASCII)

IPV4 = 4
IPV6 = 6


class AddressError(ValueError):
    """The text is not an IP address or prefix."""


def parse_address(text: str) -> bytes:
    """Return the packed address; leading zeros of IPv4 are decimal, as the API server and kube-proxy read them.

    IPv4-mapped IPv6 addresses are IPv4. Raises AddressError. Source: k8s.io/utils/net ParseIPSloppy.
    """
    packed = _packed(text)
    return packed[12:] if len(packed) == 16 and packed.startswith(_MAPPED_PREFIX) else packed


def _packed(text: str) -> bytes:
    """Return an address as it is written: 16 bytes of one with colons."""
    try:
        return socket.inet_pton(socket.AF_INET, text)
    except (OSError, TypeError, ValueError):
        pass
    if not isinstance(text, str):
        raise AddressError("%s is not an IP address" % shown(text))
    head, colon, last = text.rpartition(":")
    plain = text
    if _DOTTED_QUAD.fullmatch(last):
        plain = head + colon + ".".join(str(int(part, 10)) for part in last.split("."))
    try:
        return socket.inet_pton(socket.AF_INET6 if colon else socket.AF_INET, plain)
    except (OSError, ValueError):
        raise AddressError("%s is not an IP address" % shown(text)) from None


def format_address(packed: bytes) -> str:
    """Return the canonical text of a packed address (RFC 5952 for IPv6)."""
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def format_socket_address(packed: bytes, port: int) -> str:
    """Return ``address:port``, with brackets around IPv6."""
    text = format_address(packed)
    return "%s:%d" % (text if len(packed) == 4 else "[%s]" % text, port)


def is_special(packed: bytes) -> bool:
    """Tell whether an address is unspecified, broadcast, loopback or multicast: the address of no one place.

    The API server takes none of them as an endpoint or external IP (pkg/apis/core/validation ValidateNonSpecialIP).
    """
    first = packed[0]
    if len(packed) == 4:
        return first in (0, 127) or 0xE0 <= first < 0xF0 or packed == _BROADCAST
    return first == 0xFF or (packed[15] <= 1 and packed.startswith(_ZEROS))


def family_of(packed: bytes) -> int:
    """Return 4 or 6."""
    return IPV4 if len(packed) == 4 else IPV6


def is_loopback(packed: bytes) -> bool:
    """Whether an address is of 127.0.0.0/8, or ::1."""
    return packed[0] == 127 if len(packed) == 4 else packed == b"\x00" * 15 + b"\x01"


class Prefix(NamedTuple):
    """A CIDR block in canonical form: no host bits set."""

    network: bytes
    length: int

    @property
    def family(self) -> int:
        return family_of(self.network)

    @property
    def last(self) -> bytes:
        """The highest address of the block."""
        width = len(self.network) * 8
        value = int.from_bytes(self.network, "big") | ((1 << (width - self.length)) - 1)
        return value.to_bytes(len(self.network), "big")

    def contains(self, packed: bytes) -> bool:
        return len(packed) == len(self.network) and self.network <= packed <= self.last

    def __str__(self) -> str:
        return "%s/%d" % (format_address(self.network), self.length)


def parse_prefix(text: str) -> Prefix:
    """Return the prefix of ``address/length``; host bits are cleared, blanks around it are trimmed.

    An IPv4-mapped block is IPv4 if its length, which counts 128 bits, leaves all of the prefix that says so. Raises
    AddressError. Source: k8s.io/utils/net ParseCIDRSloppy and IPFamilyOfCIDR.
    """
    if not isinstance(text, str):
        raise AddressError("%s is not a CIDR block" % shown(text))
    address, slash, length_text = text.strip().partition("/")
    if not slash or not _PREFIX_LENGTH.fullmatch(length_text):
        raise AddressError("%s is not a CIDR block" % shown(text))
    packed = _packed(address)
    length, width = int(length_text, 10), len(packed) * 8
    if length > width:
        raise AddressError("%s is not a CIDR block: the prefix is longer than %d bits" % (shown(text), width))
    keep = ((1 << length) - 1) << (width - length)
    network = (int.from_bytes(packed, "big") & keep).to_bytes(len(packed), "big")
    if width == 128 and network.startswith(_MAPPED_PREFIX):
        return Prefix(network[12:], length - 96)
    return Prefix(network, length)


def merge_ranges(ranges: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    """Return inclusive ranges of one family sorted, with overlaps, repeats and neighbours merged."""
    merged: list[tuple[bytes, bytes]] = []
    for first, last in sorted(ranges):
        if merged and int.from_bytes(first, "big") <= int.from_bytes(merged[-1][1], "big") + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)
