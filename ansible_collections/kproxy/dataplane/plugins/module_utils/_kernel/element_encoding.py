# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Element operations as nf_tables messages: pure, and the hot path of every commit.

Ten thousand services make some 60,000 elements, so an element costs a few concatenations: everything that is the same
for many elements (headers by length, whole verdicts) is built once.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.element_decoding import TimedElement
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import ElementError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    ATTRIBUTE,
    HEADER,
    NLA_F_NESTED,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_REQUEST,
    attribute,
    nested,
    text_attribute,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    COMMENT_MAX_BYTES,
    Element,
    IntervalEnd,
    Key,
    SetName,
    Transaction,
)

#: A nested attribute's length has 16 bits, so one message holds a list of at most this many bytes.
_LIST_MAX_BYTES = 0xFFFF - 4

ADD, DELETE = "add", "delete"
_REFUSALS = (ValueError, TypeError)


class UnencodableElement(ValueError):
    """An element that no kernel would take, named before anything is sent."""


class Piece(NamedTuple):
    """Consecutive element operations of one set that fit one message."""

    set_name: SetName
    operation: str
    #: Index of the first element in the transaction's list; the others follow.
    first: int
    #: Encoded elements, one each.
    elements: list[bytes]


class _HeaderCache(dict[int, bytes]):
    """Headers by length of what they head, made on first use."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, length: int) -> bytes:
        made = self[length] = self._make(length)
        return made


def _value_header(kind: int, length: int) -> bytes:
    """Return nested(kind){ DATA_VALUE } up to the value itself."""
    return ATTRIBUTE.pack(8 + (length + 3 & ~3), kind | NLA_F_NESTED) + ATTRIBUTE.pack(4 + length, nft.DATA_VALUE)


_KEY_HEADERS = _HeaderCache(lambda length: _value_header(nft.ELEM_KEY, length))
_KEY_END_HEADERS = _HeaderCache(lambda length: _value_header(nft.ELEM_KEY_END, length))
_DATA_HEADERS = _HeaderCache(lambda length: _value_header(nft.ELEM_DATA, length))
_ELEMENT_HEADERS = _HeaderCache(lambda length: ATTRIBUTE.pack(4 + length, nft.LIST_ELEM | NLA_F_NESTED))
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")
_INTERVAL_END = attribute(nft.ELEM_FLAGS, struct.pack(">I", nft.ELEM_FLAG_INTERVAL_END))


def encode_verdict(verdict: str) -> bytes:
    """Return the data attribute of "goto NAME", "jump NAME", "accept", "drop" or "return".

    Raises:
        UnencodableElement: any other text.
    """
    word, _blank, chain = verdict.partition(" ")
    code = nft.VERDICT_CODES.get(word)
    if code is None or (word in ("goto", "jump")) != bool(chain):
        raise UnencodableElement(f"no verdict: {verdict!r}")
    parts = [attribute(nft.VERDICT_CODE, struct.pack(">i", code))]
    if chain:
        parts.append(text_attribute(nft.VERDICT_CHAIN, chain))
    return nested(nft.ELEM_DATA, nested(nft.DATA_VERDICT, *parts))


def _comment_header(length: int) -> bytes:
    """Return the user data attribute up to the comment itself: type 0, length with the NUL behind it."""
    return ATTRIBUTE.pack(4 + 2 + length + 1, nft.ELEM_USERDATA) + bytes((0, length + 1))


_COMMENT_HEADERS = _HeaderCache(_comment_header)
#: The NUL behind a comment, and what fills its attribute up to four bytes, by length modulo four.
_COMMENT_ENDS = (b"\0\0", b"\0", b"\0\0\0\0", b"\0\0\0")


def encode_comment(comment: str) -> bytes:
    """Return the user data attribute in which nft keeps an element's comment (type 0, length, text, NUL).

    Raises:
        UnencodableElement: longer than nft can load again.
    """
    raw = comment.encode()
    size = len(raw)
    if size > COMMENT_MAX_BYTES:
        raise UnencodableElement(f"comment of {size} bytes, at most {COMMENT_MAX_BYTES} are possible: {comment!r}")
    return _COMMENT_HEADERS[size] + raw + _COMMENT_ENDS[size & 3]


def encode_key(key: Key) -> bytes:
    """Return the key attribute, with what follows it for ranges and interval ends."""
    if isinstance(key, IntervalEnd):
        return _INTERVAL_END + encode_key(key.key)
    if isinstance(key, tuple):
        first, last = key
        if len(first) != len(last) or first > last:
            raise UnencodableElement(f"no range: {first.hex()}-{last.hex()}")
        return encode_key(first) + _KEY_END_HEADERS[len(last)] + last + _PADDING[len(last) & 3]
    return _KEY_HEADERS[len(key)] + key + _PADDING[len(key) & 3]


def encode_deletes(keys: Sequence[Key]) -> list[bytes]:
    """Return one encoded element for each key."""
    headers = _ELEMENT_HEADERS
    encoded = []
    for key in keys:
        body = encode_key(key)
        encoded.append(headers[len(body)] + body)
    return encoded


def encode_adds(elements: Sequence[Element]) -> list[bytes]:
    """Return one encoded element for each (key, value, comment)."""
    element_headers, key_headers, data_headers = _ELEMENT_HEADERS, _KEY_HEADERS, _DATA_HEADERS
    padding = _PADDING
    verdicts: dict[str, bytes] = {}
    encoded: list[bytes] = []
    append = encoded.append
    for key, value, comment in elements:
        if isinstance(key, bytes):
            size = len(key)
            body = key_headers[size] + key + padding[size & 3]
        else:
            body = encode_key(key)
        if value is None:
            pass
        elif isinstance(value, bytes):
            size = len(value)
            body += data_headers[size] + value + padding[size & 3]
        elif isinstance(value, str):
            verdict = verdicts.get(value)
            if verdict is None:
                verdict = verdicts[value] = encode_verdict(value)
            body += verdict
        else:
            raise UnencodableElement(f"no value: {value!r}")
        if comment:
            body += encode_comment(comment)
        append(element_headers[len(body)] + body)
    return encoded


def encode_timed(elements: Sequence[TimedElement]) -> list[bytes]:
    """Return one encoded element of a dynamic map for each, with its timeout and what is left of it."""
    encoded = []
    for key, value, timeout_ms, expires_in_ms in elements:
        if not isinstance(value, bytes):
            raise UnencodableElement(f"no value of a dynamic map: {value!r}")
        body = encode_key(key) + _DATA_HEADERS[len(value)] + value + _PADDING[len(value) & 3]
        for kind, milliseconds in ((nft.ELEM_TIMEOUT, timeout_ms), (nft.ELEM_EXPIRATION, expires_in_ms)):
            if milliseconds is not None:
                body += attribute(kind, struct.pack(">Q", milliseconds))
        encoded.append(_ELEMENT_HEADERS[len(body)] + body)
    return encoded


def encode_timed_pieces(elements: Mapping[SetName, Sequence[TimedElement]]) -> list[Piece]:
    """Return the addition of elements to dynamic maps."""
    return [piece for set_name, timed in elements.items() for piece in _cut(set_name, ADD, encode_timed(timed))]


def _cut(set_name: SetName, operation: str, encoded: list[bytes]) -> list[Piece]:
    if not encoded:
        return []
    step = _LIST_MAX_BYTES // max(map(len, encoded))
    return [Piece(set_name, operation, first, encoded[first : first + step]) for first in range(0, len(encoded), step)]


def encode_pieces(transaction: Transaction) -> list[Piece]:
    """Return all element operations in order of execution: every delete, then every add.

    Raises:
        ElementError: EINVAL, with the set and the element that no kernel would take.
    """
    pieces: list[Piece] = []
    for set_name, keys in transaction.deletes.items():
        pieces += _cut(set_name, DELETE, _named(set_name, DELETE, keys, encode_deletes))
    for set_name, elements in transaction.adds.items():
        pieces += _cut(set_name, ADD, _named(set_name, ADD, elements, encode_adds))
    return pieces


def _named(set_name: SetName, operation: str, items: Sequence[Any], encode: Callable[..., list[bytes]]) -> list[bytes]:
    """Encode; on refusal find the element that caused it, so that the caller can leave out that one alone."""
    try:
        return encode(items)
    except _REFUSALS as error:
        for index, item in enumerate(items):
            try:
                encode((item,))
            except _REFUSALS:
                key = item[0] if operation == ADD else item
                raise ElementError(set_name, operation, index, key, errno.EINVAL, str(error)) from error
        raise


def single(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the same operations with one element a message, so that an error's sequence number names the element."""
    return [
        Piece(piece.set_name, piece.operation, piece.first + offset, [element])
        for piece in pieces
        for offset, element in enumerate(piece.elements)
    ]


def batch(
    table: str,
    pieces: Sequence[Piece],
    sequence: int,
    expected_generation: int | None = None,
    delete_operation: int = nft.DELSETELEM,
) -> tuple[bytes, int]:
    """Return one datagram that commits all pieces or none, and the sequence number its acknowledgement will carry.

    Args:
        table: our table's name, in whichever families the pieces name.
        pieces: at least one.
        sequence: number of the first message; piece number i has sequence + 1 + i.
        expected_generation: let the kernel refuse (ERESTART) if the ruleset is of another generation.
        delete_operation: DELSETELEM, or DESTROYSETELEM where the kernel has it.
    """
    begin = nft.NFGENMSG.pack(0, 0, nft.SUBSYSTEM)
    if expected_generation is not None:
        begin += attribute(1, struct.pack(">I", expected_generation))  # NFNL_BATCH_GENID
    parts = [HEADER.pack(16 + len(begin), nft.BATCH_BEGIN, NLM_F_REQUEST, sequence, 0), begin]
    operations = {
        ADD: (nft.message_type(nft.NEWSETELEM), NLM_F_REQUEST | NLM_F_CREATE),
        DELETE: (nft.message_type(delete_operation), NLM_F_REQUEST),
    }
    prefixes: dict[SetName, bytes] = {}
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        sequence += 1
        prefix = prefixes.get(piece.set_name)
        if prefix is None:
            prefix = prefixes[piece.set_name] = element_list_prefix(table, piece.set_name)
        listed = b"".join(piece.elements)
        kind, flags = operations[piece.operation]
        size = 16 + len(prefix) + 4 + len(listed)
        parts.append(HEADER.pack(size, kind, flags | (NLM_F_ACK if index == last else 0), sequence, 0))
        parts.append(prefix)
        parts.append(ATTRIBUTE.pack(4 + len(listed), nft.ELEM_LIST_ELEMENTS | NLA_F_NESTED))
        parts.append(listed)
    end = nft.NFGENMSG.pack(0, 0, nft.SUBSYSTEM)
    parts += [HEADER.pack(16 + len(end), nft.BATCH_END, NLM_F_REQUEST, sequence + 1, 0), end]
    return b"".join(parts), sequence


def element_list_prefix(table: str, set_name: SetName) -> bytes:
    """Return what comes before the list in every element message: netfilter header, table and set."""
    return (
        nft.nfgenmsg(set_name.family)
        + text_attribute(nft.ELEM_LIST_TABLE, table)
        + text_attribute(nft.ELEM_LIST_SET, set_name.name)
    )


def element_at(table: str, piece: Piece, offset: int | None) -> int | None:
    """Return which element of a piece the kernel meant by an attribute's offset in the message, if it lies in one."""
    if offset is None:
        return None
    position = 16 + len(element_list_prefix(table, piece.set_name)) + 4
    if offset < position:
        return None
    for index, element in enumerate(piece.elements):
        position += len(element)
        if offset < position:
            return index
    return None
