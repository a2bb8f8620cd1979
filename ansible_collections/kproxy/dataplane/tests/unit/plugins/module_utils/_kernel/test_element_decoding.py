"""Dumps of sets that nft 1.0.6 filled, as Linux 6.18 answers NFT_MSG_GETSETELEM.

The table was made by `nft -f` with

    map services { type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.96.0.9 . tcp . 80 comment "shop/web:http" : goto pick-5 } }
    map endpoints-tcp { typeof ip daddr . tcp dport . numgen random mod 65536 : ip daddr . tcp dport
        elements = { 10.96.0.9 . 80 . 3 : 10.180.0.1 . 8080 } }
    set ranges { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval
        elements = { 10.96.0.9 . tcp . 80 . 198.51.100.0/24, 10.96.0.9 . tcp . 80 . 203.0.113.7 comment "one" } }
    set cidrs { type ipv4_addr; flags interval; elements = { 10.180.0.0/16 } }
    map pins { type ipv4_addr : ipv4_addr . inet_service; flags dynamic,timeout; timeout 1h
        elements = { 10.0.0.1 timeout 3h expires 5m : 10.180.0.1 . 8080 } }
"""

from __future__ import annotations

import struct

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import element_encoding as encoding
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.element_decoding import (
    TimedElement,
    decode_comment,
    decode_elements,
    decode_timed_elements,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import nested
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    IntervalEnd,
    SetName,
)

FRONTEND = bytes.fromhex("0a6000090600000000500000")
SERVICES = (
    "020000020b0001006b70726f787900000d0002007365727669636573000000004c0003004800010014000100100001000a60000906000000"
    "005000001c0002001800020008000100fffffffc0b0002007069636b2d35000014000600000e73686f702f7765623a6874747000"
)
ENDPOINTS = (
    "020000020b0001006b70726f7879000012000200656e64706f696e74732d7463700000002c0003002800010014000100100001000a600009"
    "0050000003000000100002000c0001000ab400011f900000"
)
RANGES = (
    "020000020b0001006b70726f787900000b00020072616e6765730000780003003400010018000100140001000a6000090600000000500000"
    "c633640018000a00140001000a6000090600000000500000c63364ff4000010018000100140001000a6000090600000000500000cb007107"
    "18000a00140001000a6000090600000000500000cb0071070a00060000046f6e65000000"
)
CIDRS = (
    "020000020b0001006b70726f787900000a000200636964727300000044000300180001000c000100080001000ab500000800030000000001"
    "100001000c000100080001000ab40000180001000c00010008000100000000000800030000000001"
)
PINS = (
    "020000020b0001006b70726f787900000900020070696e73000000003c000300380001000c000100080001000a000001100002000c000100"
    "0ab400011f9000000c0004000000000000a4cb800c00050000000000000493e0"
)
EMPTY = "020000020b0001006b70726f787900000d00020073657276696365730000000004000300"

CASES: list[tuple[str, str, list[Element]]] = [
    ("verdict with comment", SERVICES, [(FRONTEND, "goto pick-5", "shop/web:http")]),
    (
        "data",
        ENDPOINTS,
        [(bytes.fromhex("0a60000900500000") + struct.pack("=I", 3), bytes.fromhex("0ab400011f900000"), None)],
    ),
    (
        "ranges, one of a single key",
        RANGES,
        [
            ((FRONTEND + bytes.fromhex("c6336400"), FRONTEND + bytes.fromhex("c63364ff")), None, None),
            (FRONTEND + bytes.fromhex("cb007107"), None, "one"),
        ],
    ),
    (
        "plain interval",
        CIDRS,
        [
            (IntervalEnd(bytes.fromhex("0ab50000")), None, None),
            (bytes.fromhex("0ab40000"), None, None),
            (IntervalEnd(bytes(4)), None, None),
        ],
    ),
    ("timed", PINS, [(bytes.fromhex("0a000001"), bytes.fromhex("0ab400011f900000"), None)]),
    ("last message", EMPTY, []),
]


@pytest.mark.parametrize(("payload", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_decode_elements(payload: str, expected: list[Element]) -> None:
    assert decode_elements([memoryview(bytes.fromhex(payload))]) == expected


def test_messages_are_joined() -> None:
    payloads = [memoryview(bytes.fromhex(text)) for text in (SERVICES, EMPTY, SERVICES)]
    assert decode_elements(payloads) == [(FRONTEND, "goto pick-5", "shop/web:http")] * 2


def test_pins_have_their_times() -> None:
    assert decode_timed_elements([memoryview(bytes.fromhex(PINS)), memoryview(bytes.fromhex(EMPTY))]) == [
        TimedElement(bytes.fromhex("0a000001"), bytes.fromhex("0ab400011f900000"), 10_800_000, 300_000)
    ]


COMMENTS: list[tuple[bytes, str | None]] = [
    (b"\x00\x03hi\x00", "hi"),
    (b"\x05\x01x\x00\x03hi\x00", "hi"),  # another kind comes first
    (b"\x05\x01x", None),
    (b"", None),
    (b"\x00", None),
    (b"\x00\x03\xff\xfe\x00", "\ufffd\ufffd"),  # what another program wrote need not be UTF-8
]


@pytest.mark.parametrize(("raw", "expected"), COMMENTS)
def test_decode_comment(raw: bytes, expected: str | None) -> None:
    assert decode_comment(raw) == expected


ROUND_TRIPS: list[Element] = [
    (b"\0\0\0\1", None, None),
    (b"\0\0\0\1", b"\0\0\0\2", "ns/name"),
    (b"\0\0\0\1", "goto pick-5", "x" * 128),
    (b"\0\0\0\1", "jump a", None),
    (b"\0\0\0\1", "drop", None),
    (b"\0\0\0\1", "accept", None),
    (b"\0\0\0\1", "return", None),
    ((b"\0\0\0\1", b"\0\0\0\7"), "drop", "range"),
    (bytes(16), bytes(20), None),
]


@pytest.mark.parametrize("element", ROUND_TRIPS, ids=repr)
def test_what_is_encoded_is_decoded_again(element: Element) -> None:
    listed = nested(nft.ELEM_LIST_ELEMENTS, *encoding.encode_adds([element, element]))
    payload = encoding.element_list_prefix("kproxy", SetName(6, "some-set")) + listed
    assert decode_elements([memoryview(payload)]) == [element, element]
