# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Lines of iptables-save, odd ones above all."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import (
    SaveError,
    parse,
    render,
    words,
)

WORDS = [
    ("plain", "-A INPUT -j ACCEPT", ["-A", "INPUT", "-j", "ACCEPT"]),
    ("quoted", '--comment "two words" -j X', ["--comment", "two words", "-j", "X"]),
    ("escaped quote", r'--comment "say \"no\" -j Y" -j X', ["--comment", 'say "no" -j Y', "-j", "X"]),
    ("escaped backslash", r'--comment "a\\" -j X', ["--comment", "a\\", "-j", "X"]),
    ("empty", '--comment "" -j X', ["--comment", "", "-j", "X"]),
    ("many spaces", "  -A   B ", ["-A", "B"]),
]


@pytest.mark.parametrize(("line", "expected"), [row[1:] for row in WORDS], ids=[row[0] for row in WORDS])
def test_words(line: str, expected: list[str]) -> None:
    assert words(line) == expected


RULES = [
    ("jump", "-A PREROUTING -j KUBE-SERVICES", "KUBE-SERVICES", ()),
    ("goto", "-A PREROUTING -g KUBE-SERVICES", "KUBE-SERVICES", ()),
    ("no target", "-A INPUT -p tcp", None, ()),
    ("comment that reads like a jump", '-A INPUT -m comment --comment "-j KUBE-SERVICES" -j ACCEPT', "ACCEPT", ()),
    ("comment that is an option", '-A INPUT -m comment --comment "-j" -m mark --mark 1', None, ()),
    ("set", "-A X -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE", "MASQUERADE", ("KUBE-LOOP-BACK",)),
    ("set target", "-A X -j SET --add-set bad src", "SET", ("bad",)),
    ("two sets", "-A X -m set ! --match-set a src -m set --match-set b dst -j DROP", "DROP", ("a", "b")),
    ("counters", "[7:420] -A X -j DROP", "DROP", ()),
]


@pytest.mark.parametrize(("line", "target", "sets"), [row[1:] for row in RULES], ids=[row[0] for row in RULES])
def test_rule(line: str, target: str | None, sets: tuple[str, ...]) -> None:
    rule = parse(f"*filter\n{line}\nCOMMIT\n")[0].rules[0]
    assert (rule.target, rule.sets) == (target, sets)
    assert rule.deletion.startswith("-D ")


BROKEN = [
    ("cut off", "*nat\n:PREROUTING ACCEPT [0:0]\n", "does not end in COMMIT"),
    ("no table", "-A INPUT -j ACCEPT\n", "line 1 is outside a table"),
    ("open quote", '*nat\n-A INPUT -m comment --comment "oh -j DROP\nCOMMIT\n', "quote is not closed"),
    ("chain without policy", "*nat\n:X\nCOMMIT\n", "line 2 is not a chain"),
    ("other text", "*nat\nNo such file\nCOMMIT\n", "not a rule"),
]


@pytest.mark.parametrize(("text", "message"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_broken_dump_is_refused(text: str, message: str) -> None:
    with pytest.raises(SaveError, match=message):
        parse(text)


def test_render_gives_back_what_was_read_without_dated_comments() -> None:
    body = '*nat\n:A - [3:4]\n[1:2] -A A -m comment --comment "x \\" y" -j RETURN\nCOMMIT\n'
    assert render(parse("# Generated\n" + body + "# Completed\n")) == body
