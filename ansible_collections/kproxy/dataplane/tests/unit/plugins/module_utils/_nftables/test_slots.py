"""Slots: as little moves as can be."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.slots import assign

ROWS = [
    ("first fill", "", "abc", "abc"),
    ("nothing changed, whatever the order", "abc", "cab", "abc"),
    ("one more goes to the end", "abc", "abcd", "abcd"),
    ("the last one moves into a hole", "abcd", "acd", "adc"),
    ("the last one just goes", "abc", "ab", "ab"),
    ("a newcomer fills the hole", "abc", "axc", "axc"),
    ("holes are filled in the wanted order", "abcd", "dxa", "adx"),
    ("all new", "abc", "xy", "xy"),
    ("all gone", "abc", "", ""),
]


@pytest.mark.parametrize(("held", "wanted", "slots"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_slots(held: str, wanted: str, slots: str) -> None:
    found = assign([char.encode() for char in held], [char.encode() for char in wanted])
    assert b"".join(found).decode() == slots


def test_a_repeat_in_the_kernel_is_held_once() -> None:
    assert assign([b"a", b"a", b"b"], [b"a", b"b"]) == [b"a", b"b"]
