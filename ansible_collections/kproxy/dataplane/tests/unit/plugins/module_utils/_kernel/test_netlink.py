"""Netlink framing and the kernel's error messages."""

from __future__ import annotations

import struct

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import netlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import Failure, Message

ATTRIBUTES: list[tuple[str, list[tuple[int, str]]]] = [
    ("", []),
    ("0800010000000007", [(1, "00000007")]),
    ("050001000a00000008000280aabbccdd", [(1, "0a"), (2, "aabbccdd")]),  # padding; the nested flag is taken off
    ("0800010000000007ff000200", [(1, "00000007")]),  # runs over the end
    ("0300010000000000", []),  # shorter than its own header
    ("0800", []),
]


@pytest.mark.parametrize(("raw", "expected"), ATTRIBUTES)
def test_attributes(raw: str, expected: list[tuple[int, str]]) -> None:
    found = [(kind, bytes(value).hex()) for kind, value in netlink.attributes(memoryview(bytes.fromhex(raw)))]
    assert found == expected


def test_attributes_are_written_as_they_are_read() -> None:
    written = netlink.attribute(1, b"abc") + netlink.nested(2, netlink.text_attribute(3, "name"))
    assert len(written) % 4 == 0
    parts = netlink.attribute_map(memoryview(written))
    assert bytes(parts[1]) == b"abc"
    assert netlink.text(netlink.attribute_map(parts[2])[3]) == "name"


# NLMSG_ERROR payloads: error code, header of the request, then extended attributes.
REQUEST = "50000000 0c0a 0500 07000000 00000000".replace(" ", "")
FAILURES: list[tuple[str, int, str, Failure]] = [
    ("acknowledgement", 0x100, "00000000" + REQUEST, Failure(7, 0, "", None)),
    ("no details", 0x100, "feffffff" + REQUEST, Failure(7, 2, "", None)),
    ("offset", 0x300, "feffffff" + REQUEST + "080002004c000000", Failure(7, 2, "", 0x4C)),
    (
        "words and offset",
        0x300,
        "eaffffff" + REQUEST + "0c000100" + b"no such".hex() + "00" + "0800020010000000",
        Failure(7, 22, "no such", 16),
    ),
    (
        "behind a whole request",
        0x200,
        "feffffff" + "18000000" + REQUEST[8:] + "aabbccdd00112233" + "080002004c000000",
        Failure(7, 2, "", 0x4C),
    ),
]


@pytest.mark.parametrize(("flags", "payload", "expected"), [row[1:] for row in FAILURES], ids=[r[0] for r in FAILURES])
def test_failure_of(flags: int, payload: str, expected: Failure) -> None:
    message = Message(netlink.NLMSG_ERROR, flags, 7, 0, memoryview(bytes.fromhex(payload)))
    assert netlink.failure_of(message) == expected


def test_messages_stop_at_a_truncated_one() -> None:
    whole = netlink.message(16, 1, 5, bytes(4))
    cut = struct.pack("=IHHII", 400, 16, 1, 6, 0)
    assert [m.sequence for m in netlink.messages(memoryview(whole + whole + cut))] == [5, 5]
