# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which byte stands for an address. The programs' own hash is compared by tests/packets/ebpf/test_served_blocks.py."""

from __future__ import annotations

import ipaddress

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout, served_blocks


def packed(ip: str) -> bytes:
    return ipaddress.ip_address(ip).packed


@pytest.mark.parametrize(
    ("ip", "also", "other"),
    [
        ("10.96.0.1", "10.96.0.255", "10.96.1.1"),
        ("203.0.113.80", "203.0.113.0", "203.0.112.80"),
        ("fd00:10:96::1", "fd00:10:96::ffff", "fd00:10:96::1:1"),
        ("2001:db8::80", "2001:db8::", "2001:db8:1::80"),
    ],
)
def test_a_block_has_one_slot(ip: str, also: str, other: str) -> None:
    family = 4 if "." in ip else 6
    (slot,) = served_blocks.slots_of(family, [packed(ip), packed(also)])
    assert slot < served_blocks.SLOTS
    assert served_blocks.slots_of(family, [layout.frontend_key(family, packed(ip), 6, 80)]) == {slot}
    assert len(served_blocks.slots_of(family, [packed(ip), packed(other)])) == 2


@pytest.mark.parametrize(
    ("family", "first"), [(4, "10.96.0.0"), (4, "10.244.0.0"), (6, "fd00:10:96::"), (6, "2001:db8::")]
)
def test_blocks_in_a_row_spread_over_the_slots(family: int, first: str) -> None:
    """As well as numbers drawn at random would, nearly: 1024 of those fill 992 of 16384 slots."""
    step = 256 if family == 4 else 65536
    start = int.from_bytes(packed(first), "big")
    width = len(packed(first))
    addresses = [(start + number * step).to_bytes(width, "big") for number in range(1024)]
    assert len(served_blocks.slots_of(family, addresses)) > 960
