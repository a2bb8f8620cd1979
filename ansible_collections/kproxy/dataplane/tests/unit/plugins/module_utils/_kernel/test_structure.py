"""The canonical form of a rule: equal while nobody altered it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import attribute_map
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.structure import canonical_rule

# chain c { ip saddr { 10.0.0.1, 10.0.0.2 } counter packets 5 bytes 500 drop comment "x"; } as Linux 6.18 dumps it.
RULE = (
    "020000020b0001006b70726f7879000006000200630000000c0003000000000000000009c4000400340001000c0001007061796c6f616400"
    "2400020008000100000000010800020000000001080003000000000c0800040000000004300001000b0001006c6f6f6b7570000020000200"
    "0b0001005f5f736574300000080002000000000108000500000000002c0001000c000100636f756e746572001c0002000c00010000000000"
    "000001f40c0002000000000000000005300001000e000100696d6d6564696174650000001c0002000800010000000000100002000c000200"
    "08000100000000000800070000027800"
)


def canonical(raw: str, rename: Callable[[str], str] = lambda name: name) -> bytes:
    return canonical_rule(attribute_map(memoryview(bytes.fromhex(raw)), 4), rename)


ALTERED: list[tuple[str, str, str, bool]] = [
    ("another handle", "0000000000000009", "0000000000000010", True),
    ("counted on", "00000000000001f4", "00000000000005dc", True),
    ("another offset of the match", "080003000000000c", "0800030000000010", False),
    ("accepts", "08000100000000000800070000027800", "08000100000000010800070000027800", False),
    ("another comment", "0800070000027800", "0800070000027900", False),
    ("another set", "5f5f73657430", "5f5f73657431", False),
]


@pytest.mark.parametrize(("old", "new", "same"), [row[1:] for row in ALTERED], ids=[row[0] for row in ALTERED])
def test_only_an_alteration_changes_the_form(old: str, new: str, same: bool) -> None:
    assert old in RULE
    assert (canonical(RULE.replace(old, new)) == canonical(RULE)) == same


def test_an_anonymous_set_counts_by_its_content() -> None:
    other_number = RULE.replace("5f5f73657430", "5f5f73657439")
    contents = {"__set0": "digest of 10.0.0.1 and 10.0.0.2", "__set9": "digest of 10.0.0.1 and 10.0.0.2"}
    assert canonical(RULE, contents.__getitem__) == canonical(other_number, contents.__getitem__)
    contents["__set9"] = "digest of 10.0.0.3"
    assert canonical(RULE, contents.__getitem__) != canonical(other_number, contents.__getitem__)
