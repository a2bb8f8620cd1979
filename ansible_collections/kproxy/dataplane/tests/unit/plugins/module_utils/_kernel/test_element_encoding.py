"""Element operations against the bytes that nft 1.0.6 sends for the same statement.

Captured with `strace -e trace=sendmsg -e write=all nft STATEMENT`; the table had the sets of test_element_decoding.
Of each message the element list's first element is kept (nft numbers list items, we always write 1: the kernel looks
at neither).
"""

from __future__ import annotations

import errno
import struct
from typing import NamedTuple

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import element_encoding as encoding
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import ElementError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import attribute_map, messages
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    IntervalEnd,
    Key,
    SetName,
    Transaction,
    plain_interval,
)

SERVICES = SetName(4, "services")
ENDPOINTS = SetName(4, "endpoints-tcp")


def frontend(address: str, protocol: int, port: int) -> bytes:
    return bytes.fromhex(address) + bytes((protocol, 0, 0, 0)) + struct.pack(">H", port) + bytes(2)


class Captured(NamedTuple):
    statement: str
    element: Element
    bytes: str


ADDS = [
    Captured(
        "ip kproxy services { 10.96.0.9 . tcp . 80 : goto pick-5 }",
        (frontend("0a600009", 6, 80), "goto pick-5", None),
        "34000180 14000180 10000100 0a600009 06000000 00500000"
        "1c000280 18000280 08000100 fffffffc 0b000200 7069636b2d350000",
    ),
    Captured(
        'ip kproxy services { 10.96.0.10 . udp . 53 comment "kube-system/kube-dns:dns" : jump pick-5 }',
        (frontend("0a60000a", 17, 53), "jump pick-5", "kube-system/kube-dns:dns"),
        "54000180 14000180 10000100 0a60000a 11000000 00350000"
        "1c000280 18000280 08000100 fffffffd 0b000200 7069636b2d350000"
        "1f000600 00196b7562652d73797374656d2f6b7562652d646e733a646e730000",
    ),
    Captured(
        "ip kproxy services { 10.96.0.11 . tcp . 443 : drop }",
        (frontend("0a60000b", 6, 443), "drop", None),
        "28000180 14000180 10000100 0a60000b 06000000 01bb0000 10000280 0c000280 08000100 00000000",
    ),
    Captured(
        "ip kproxy services { 10.96.0.11 . sctp . 443 : accept }",
        (frontend("0a60000b", 132, 443), "accept", None),
        "28000180 14000180 10000100 0a60000b 84000000 01bb0000 10000280 0c000280 08000100 00000001",
    ),
    Captured(
        "ip6 kproxy services { fd00::9 . tcp . 80 : drop }",
        (frontend("fd000000000000000000000000000009", 6, 80), "drop", None),
        "34000180 20000180 1c000100 fd000000000000000000000000000009 06000000 00500000"
        "10000280 0c000280 08000100 00000000",
    ),
    Captured(
        "ip kproxy endpoints-tcp { 10.96.0.9 . 80 . 3 : 10.180.0.1 . 8080 }",
        (bytes.fromhex("0a60000900500000") + struct.pack("=I", 3), bytes.fromhex("0ab400011f900000"), None),
        "28000180 14000180 10000100 0a600009 00500000 03000000 10000280 0c000100 0ab40001 1f900000",
    ),
    Captured(
        "ip kproxy ranges { 10.96.0.9 . tcp . 80 . 198.51.100.0/24 }",
        (
            (
                frontend("0a600009", 6, 80) + bytes.fromhex("c6336400"),
                frontend("0a600009", 6, 80) + bytes.fromhex("c63364ff"),
            ),
            None,
            None,
        ),
        "34000180 18000180 14000100 0a600009 06000000 00500000 c6336400"
        "18000a80 14000100 0a600009 06000000 00500000 c63364ff",
    ),
    Captured(
        "ip kproxy cidrs { 10.180.0.0/16 }, its end",
        (IntervalEnd(bytes.fromhex("0ab50000")), None, None),
        "18000180 08000300 00000001 0c000180 08000100 0ab50000",
    ),
    Captured(
        "ip kproxy ports { 30080 }",
        (struct.pack(">H", 30080), None, None),
        "10000180 0c000180 06000100 75800000",
    ),
    Captured(
        "ip kproxy m6 { 10.0.0.1 : fd00::1 }",
        (bytes.fromhex("0a000001"), bytes.fromhex("fd000000000000000000000000000001"), None),
        "28000180 0c000180 08000100 0a000001 18000280 14000100 fd000000000000000000000000000001",
    ),
]


@pytest.mark.parametrize("case", ADDS, ids=lambda case: case.statement)
def test_an_added_element_has_the_bytes_that_nft_sends(case: Captured) -> None:
    assert encoding.encode_adds([case.element])[0].hex() == case.bytes.replace(" ", "")


@pytest.mark.parametrize("case", ADDS, ids=lambda case: case.statement)
def test_a_deleted_element_is_its_key_alone(case: Captured) -> None:
    body = encoding.encode_key(case.element[0])
    assert encoding.encode_deletes([case.element[0]]) == [struct.pack("=HH", 4 + len(body), 0x8001) + body]
    assert encoding.encode_adds([case.element])[0][4:].startswith(body)


def test_a_batch_has_the_bytes_that_nft_sends() -> None:
    # nft delete element ip kproxy services '{ 10.96.0.9 . tcp . 80 }'
    captured = (
        "14000000 1000 0100 00000000 00000000 0000000a"
        "4c000000 0e0a 0500 01000000 00000000 02000000 0b0001006b70726f78790000 0d000200736572766963657300000000"
        "1c000380 18000180 14000180 10000100 0a60000906000000 00500000"
        "14000000 1100 0100 02000000 00000000 0000000a"
    ).replace(" ", "")
    pieces = encoding.encode_pieces(Transaction(deletes={SERVICES: [frontend("0a600009", 6, 80)]}))
    datagram, acknowledged = encoding.batch("kproxy", pieces, 0)
    assert (datagram.hex(), acknowledged) == (captured, 1)


REFUSALS: list[tuple[str, Element, str]] = [
    ("goto without chain", (b"\0\0\0\1", "goto", None), "no verdict: 'goto'"),
    ("drop with chain", (b"\0\0\0\1", "drop x", None), "no verdict: 'drop x'"),
    ("unknown verdict", (b"\0\0\0\1", "reject", None), "no verdict: 'reject'"),
    ("comment of 129 bytes", (b"\0\0\0\1", None, "x" * 129), "comment of 129 bytes"),
    ("65 characters, 130 bytes", (b"\0\0\0\1", None, "é" * 65), "comment of 130 bytes"),
    ("backward range", ((b"\0\0\0\2", b"\0\0\0\1"), None, None), "no range: 00000002-00000001"),
    ("value of a wrong type", (b"\0\0\0\1", 7, None), "no value: 7"),  # type: ignore[list-item]
    ("key of a wrong type", ("text", None, None), ""),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("element", "words"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_cannot_be_encoded_is_named_by_set_and_position(element: Element, words: str) -> None:
    good: Element = (b"\0\0\0\0", None, None)
    with pytest.raises(ElementError) as raised:
        encoding.encode_pieces(Transaction(adds={SetName(6, "s"): [good, good, element, good]}))
    error = raised.value
    assert (error.set_name, error.operation, error.index, error.key) == (SetName(6, "s"), "add", 2, element[0])
    assert (error.errno, error.detail[: len(words)]) == (errno.EINVAL, words)


def test_a_comment_of_128_bytes_is_possible() -> None:
    assert encoding.encode_comment("x" * 128)[4:].startswith(bytes((0, 129)) + b"x" * 128 + b"\0")


def parse_batch(datagram: bytes) -> list[tuple[int, int, int, int, int]]:
    """Return (operation, flags, sequence, length, elements) of each message."""
    found = []
    for message in messages(memoryview(datagram)):
        count = 0
        if message.type >> 8 == nft.SUBSYSTEM:
            listed = attribute_map(message.payload, 4)[nft.ELEM_LIST_ELEMENTS]
            position = 0
            while position < len(listed):
                position += (struct.unpack_from("=H", listed, position)[0] + 3) & ~3
                count += 1
        found.append((message.type, message.flags, message.sequence, len(message.payload) + 16, count))
    return found


@pytest.mark.parametrize("comment", [None, "x" * 128])
def test_many_elements_become_messages_below_the_limit_of_a_length_field(comment: str | None) -> None:
    elements: list[Element] = [(index.to_bytes(12, "big"), "goto pick-5", comment) for index in range(5000)]
    transaction = Transaction(adds={SERVICES: elements}, deletes={ENDPOINTS: [e[0] for e in elements]})
    pieces = encoding.encode_pieces(transaction)
    datagram, last = encoding.batch("kproxy", pieces, 100)
    begin, *inside, end = parse_batch(datagram)
    assert (begin[0], begin[2], end[0], end[2]) == (nft.BATCH_BEGIN, 100, nft.BATCH_END, last + 1)
    assert [row[2] for row in inside] == list(range(101, last + 1))
    assert max(row[3] for row in inside) < 0x10000 + 64
    assert sum(row[4] for row in inside) == 10000
    operations = [row[0] & 0xFF for row in inside]
    assert operations == sorted(operations, reverse=True), "every delete comes before every add"
    assert [index for index, row in enumerate(inside) if row[1] & 4] == [len(inside) - 1], (
        "only the last is acknowledged"
    )


def test_an_offset_in_a_message_names_the_element() -> None:
    elements: list[Element] = [
        (b"\0\0\0\1", None, None),
        (b"\0\0\0\2", None, "long comment"),
        (b"\0\0\0\3", None, None),
    ]
    (piece,) = encoding.encode_pieces(Transaction(adds={SERVICES: elements}))
    start = 16 + len(encoding.element_list_prefix("kproxy", SERVICES)) + 4
    sizes = [len(element) for element in piece.elements]
    expected = [0] * sizes[0] + [1] * sizes[1] + [2] * sizes[2]
    found = [encoding.element_at("kproxy", piece, start + offset) for offset in range(sum(sizes))]
    assert found == expected
    for outside in (None, 0, start - 1, start + sum(sizes)):
        assert encoding.element_at("kproxy", piece, outside) is None


def test_single_keeps_order_and_positions() -> None:
    keys: list[Key] = [index.to_bytes(4, "big") for index in range(5)]
    pieces = encoding.single(encoding.encode_pieces(Transaction(deletes={SERVICES: keys})))
    assert [(piece.first, piece.elements) for piece in pieces] == list(
        enumerate([e] for e in encoding.encode_deletes(keys))
    )


INTERVALS: list[tuple[str, str, tuple[Key, ...]]] = [
    ("0ab40000", "0ab4ffff", (bytes.fromhex("0ab40000"), IntervalEnd(bytes.fromhex("0ab50000")))),
    ("0a000001", "0a000001", (bytes.fromhex("0a000001"), IntervalEnd(bytes.fromhex("0a000002")))),
    ("e0000000", "ffffffff", (bytes.fromhex("e0000000"),)),
    ("00000000", "ffffffff", (bytes(4),)),
]


@pytest.mark.parametrize(("first", "last", "keys"), INTERVALS)
def test_plain_interval(first: str, last: str, keys: tuple[Key, ...]) -> None:
    assert plain_interval(bytes.fromhex(first), bytes.fromhex(last)) == keys


def test_a_transaction_knows_its_size() -> None:
    transaction = Transaction()
    assert transaction.empty
    assert transaction.size == 0
    transaction.delete(SERVICES, b"\0\0\0\1")
    transaction.add(SERVICES, b"\0\0\0\1", "drop")
    assert (transaction.empty, transaction.size) == (False, 2)
    assert not Transaction(structure="add table ip kproxy").empty
    assert Transaction(deletes={SERVICES: []}).empty
