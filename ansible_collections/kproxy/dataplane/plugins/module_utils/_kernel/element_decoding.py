# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Elements of a set out of the kernel's dump: pure, fast, the inverse of element_encoding."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    ATTRIBUTE,
    NLA_TYPE_MASK,
    attribute_map,
    text,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import IntervalEnd, Key, Value

_NFGENMSG_BYTES = 4


class TimedElement(NamedTuple):
    """One element of a dynamic map. Times are milliseconds; None where the element never expires."""

    key: Key
    value: Value
    timeout_ms: int | None
    expires_in_ms: int | None


def decode_elements(payloads: Iterable[memoryview]) -> list[tuple[Key, Value, str | None]]:
    """Return (key, value, comment) of every element in NEWSETELEM payloads.

    A catch-all element ("*") has no key and is left out: we never make one.
    """
    found: list[tuple[Key, Value, str | None]] = []
    append = found.append
    verdicts: dict[bytes, str] = {}
    unpack, mask = ATTRIBUTE.unpack_from, NLA_TYPE_MASK
    for payload in payloads:
        data, position, end = _element_list(payload)
        while position < end:
            length, _kind = unpack(data, position)
            stop = position + length
            inner = position + 4
            position += length + 3 & ~3
            key: Key | None = None
            value: Value = None
            comment: str | None = None
            while inner < stop:
                size, kind = unpack(data, inner)
                kind &= mask
                if kind == nft.ELEM_KEY:
                    key = data[inner + 8 : inner + 4 + unpack(data, inner + 4)[0]]
                elif kind == nft.ELEM_DATA:
                    value_size, value_kind = unpack(data, inner + 4)
                    raw = data[inner + 8 : inner + 4 + value_size]
                    if value_kind & mask == nft.DATA_VALUE:
                        value = raw
                    else:
                        value = verdicts.get(raw) or verdicts.setdefault(raw, decode_verdict(raw))
                elif kind == nft.ELEM_USERDATA:
                    comment = decode_comment(data[inner + 4 : inner + size])
                elif kind == nft.ELEM_KEY_END:
                    key_end = data[inner + 8 : inner + 4 + unpack(data, inner + 4)[0]]
                    if isinstance(key, bytes) and key_end != key:
                        key = (key, key_end)
                elif kind == nft.ELEM_FLAGS and isinstance(key, bytes) and data[inner + 7] & nft.ELEM_FLAG_INTERVAL_END:
                    key = IntervalEnd(key)
                inner += size + 3 & ~3
            if key is not None:
                append((key, value, comment))
    return found


def decode_timed_elements(payloads: Iterable[memoryview]) -> list[TimedElement]:
    """Return the elements of a map with timeouts, with what is left of each."""
    found: list[TimedElement] = []
    for payload in payloads:
        data, position, end = _element_list(payload)
        view = memoryview(data)
        while position < end:
            length, _kind = ATTRIBUTE.unpack_from(data, position)
            parts = attribute_map(view[position + 4 : position + length])
            position += length + 3 & ~3
            if nft.ELEM_KEY not in parts:
                continue
            value: Value = None
            if nft.ELEM_DATA in parts:
                held = attribute_map(parts[nft.ELEM_DATA])
                raw = held.get(nft.DATA_VALUE)
                value = bytes(raw) if raw is not None else decode_verdict(bytes(held[nft.DATA_VERDICT]))
            found.append(
                TimedElement(
                    bytes(attribute_map(parts[nft.ELEM_KEY])[nft.DATA_VALUE]),
                    value,
                    _milliseconds(parts.get(nft.ELEM_TIMEOUT)),
                    _milliseconds(parts.get(nft.ELEM_EXPIRATION)),
                )
            )
    return found


def decode_verdict(raw: bytes) -> str:
    """Return a verdict's attributes as "goto NAME" and the like."""
    parts = attribute_map(memoryview(raw))
    (code,) = struct.unpack(">i", parts[nft.VERDICT_CODE])
    word = nft.VERDICT_NAMES.get(code, str(code))
    return f"{word} {text(parts[nft.VERDICT_CHAIN])}" if nft.VERDICT_CHAIN in parts else word


def decode_comment(user_data: bytes) -> str | None:
    """Return the comment in an element's user data (type, length, value triples), or None."""
    position = 0
    while position + 2 <= len(user_data):
        kind, size = user_data[position], user_data[position + 1]
        if kind == 0:
            return user_data[position + 2 : position + 2 + size].rstrip(b"\0").decode("utf-8", "replace")
        position += 2 + size
    return None


def _element_list(payload: memoryview) -> tuple[bytes, int, int]:
    """Return one payload as bytes (slices of which are keys), and where its list of elements starts and ends."""
    data = bytes(payload)
    position, end = _NFGENMSG_BYTES, len(data)
    while position + 4 <= end:
        size, kind = ATTRIBUTE.unpack_from(data, position)
        if kind & NLA_TYPE_MASK == nft.ELEM_LIST_ELEMENTS:
            return data, position + 4, position + size
        position += size + 3 & ~3
    return data, end, end


def _milliseconds(value: memoryview | None) -> int | None:
    return None if value is None else int(struct.unpack(">Q", value)[0])
