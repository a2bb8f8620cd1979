"""Flows as Linux 6.18 dumps them; made with conntrack-tools 1.4.7, for example

    conntrack -I -p udp -s 10.0.0.1 -d 10.96.0.10 --sport 40000 --dport 53 -r 10.180.0.5 -q 10.0.0.1 \\
        --reply-port-src 5353 --reply-port-dst 40000 -t 120 [--orig-zone 7]
"""

from __future__ import annotations

import socket

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import conntrack_protocol as protocol
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import (
    Flow,
    Wanted,
    decode_flow,
)

UDP4 = (
    "020000003400018014000180080001000a000001080002000a60000a1c0002800500010011000000060002009c4000000600030000350000"
    "3400028014000180080001000ab40005080002000a0000011c00028005000100110000000600020014e90000060003009c40000008000300"
    "00000008080008000000000008000c00f8e1e37108000b000000000108000700000000771c00188008000100000000000800020000000000"
    "0800030000000000"
)
UDP4_ZONE_OF_ONE_DIRECTION = (
    "020000003c00018014000180080001000a000001080002000a60000a1c0002800500010011000000060002009c4100000600030000350000"
    "06000300000700003400028014000180080001000ab40005080002000a0000011c00028005000100110000000600020014e9000006000300"
    "9c4100000800030000000008080008000000000008000c00ba6d712e08000b000000000108000700000000771c0018800800010000000000"
    "08000200000000000800030000000000"
)
TCP4 = (
    "020000003400018014000180080001000a000001080002000a60000a1c0002800500010006000000060002009c4200000600030000350000"
    "3400028014000180080001000ab40005080002000a0000011c00028005000100060000000600020014e90000060003009c42000008000300"
    "00000008080008000000000008000c00550a0bb0"
)
UDP6_ZONE = (
    "0a0000004c0001802c00018014000300fd00000000000000000000000000000114000400fd0000000000000000000000000000101c000280"
    "0500010011000000060002009c40000006000300003500004c0002802c00018014000300fd00000000000000000000000000000514000400"
    "fd0000000000000000000000000000011c00028005000100110000000600020014e90000060003009c400000060012000003000008000300"
    "00000008080008000000000008000c00dca33a4b08000b0000000001"
)


def ip(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


FLOW4 = Flow(4, 17, ip("10.0.0.1"), ip("10.96.0.10"), 40000, 53, ip("10.180.0.5"), 5353, 0, 0xF8E1E371)
FLOW6 = Flow(6, 17, ip("fd00::1"), ip("fd00::10"), 40000, 53, ip("fd00::5"), 5353, 3, 0xDCA33A4B)
FLOW4_ZONE = FLOW4._replace(source_port=40001, zone=7, identifier=0xBA6D712E)

DNS4 = (ip("10.96.0.10"), 53)

CASES: list[tuple[str, str, int, Wanted | None, Flow | None]] = [
    ("udp, ipv4", UDP4, 17, None, FLOW4),
    ("udp, ipv6, in a zone", UDP6_ZONE, 17, None, FLOW6),
    ("a zone of one direction", UDP4_ZONE_OF_ONE_DIRECTION, 17, None, FLOW4_ZONE),
    ("tcp is skipped", TCP4, 17, None, None),
    (
        "tcp is read where asked for",
        TCP4,
        6,
        None,
        FLOW4._replace(protocol=6, source_port=40002, identifier=0x550A0BB0),
    ),
    ("wanted destination", UDP4, 17, Wanted({DNS4}), FLOW4),
    ("wanted node port", UDP4, 17, Wanted(frozenset(), {53}), FLOW4),
    ("same address, other port", UDP4, 17, Wanted({(DNS4[0], 5353)}, {30053}), None),
    ("same port, other address", UDP4, 17, Wanted({(ip("10.96.0.11"), 53)}), None),
    ("wanted destination, slow path", UDP4_ZONE_OF_ONE_DIRECTION, 17, Wanted({DNS4}), FLOW4_ZONE),
    ("unwanted, slow path", UDP4_ZONE_OF_ONE_DIRECTION, 17, Wanted({(DNS4[0], 5353)}), None),
    ("tcp, slow path", UDP4_ZONE_OF_ONE_DIRECTION, 6, None, None),
    ("another family", "07" + UDP4[2:], 17, None, None),
    ("no tuples", "02000000", 17, None, None),
]


@pytest.mark.parametrize(
    ("payload", "number", "wanted", "expected"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_decode_flow(payload: str, number: int, wanted: Wanted | None, expected: Flow | None) -> None:
    assert decode_flow(memoryview(bytes.fromhex(payload)), number, wanted) == expected


@pytest.mark.parametrize(("payload", "flow"), [(UDP4, FLOW4), (UDP6_ZONE, FLOW6)], ids=["ipv4", "ipv6"])
def test_a_delete_names_the_original_tuple_as_the_kernel_wrote_it(payload: str, flow: Flow) -> None:
    raw = bytes.fromhex(payload)
    tuple_length = int.from_bytes(raw[4:6], "little")
    request = protocol.delete_request(flow)
    assert request[4 : 4 + tuple_length] == raw[4 : 4 + tuple_length]
    assert request.endswith(bytes.fromhex("08000c00") + (flow.identifier or 0).to_bytes(4, "big"))
    assert (bytes.fromhex("06001200") + flow.zone.to_bytes(2, "big") in request) == bool(flow.zone)


@pytest.mark.parametrize(("payload", "flow"), [(UDP4, FLOW4), (UDP6_ZONE, FLOW6)], ids=["ipv4", "ipv6"])
def test_an_insert_has_both_tuples_as_the_kernel_wrote_them(payload: str, flow: Flow) -> None:
    raw = bytes.fromhex(payload)
    both = 2 * int.from_bytes(raw[4:6], "little")
    assert protocol.insert_request(flow, 120)[4 : 4 + both] == raw[4 : 4 + both]
