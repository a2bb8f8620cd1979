# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse what `iptables-save` prints, keeping every line as it was written.

The lines are kept because removal repeats a rule's own text after `-D`, and because a report of what would remain must
be byte for byte what the tool would print.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_LEFT_OUT = re.compile(r"^# Table [`'](?P<name>[^`']+)' is incompatible\b")


class SaveError(ValueError):
    """A dump that is not iptables-save text; the message names the line."""


class Rule(NamedTuple):
    """One rule; `text` is the line without counters, from `-A` on."""

    text: str
    line: str
    chain: str
    target: str | None
    sets: tuple[str, ...]

    @property
    def deletion(self) -> str:
        """The line for iptables-restore that deletes the first rule of this text."""
        return "-D" + self.text[2:]


class Chain(NamedTuple):
    """One chain; `policy` is `-` for a chain that is not built in."""

    name: str
    policy: str
    line: str

    @property
    def built_in(self) -> bool:
        return self.policy != "-"


class Table(NamedTuple):
    name: str
    chains: tuple[Chain, ...]
    rules: tuple[Rule, ...]


def words(line: str) -> list[str]:
    """Split a rule into words as iptables-restore does: double quotes group, a backslash escapes inside them.

    Raises SaveError for a quote that is never closed.
    """
    found: list[str] = []
    word: list[str] = []
    quoted = started = False
    position = 0
    while position < len(line):
        character = line[position]
        if quoted and character == "\\" and position + 1 < len(line):
            position += 1
            word.append(line[position])
        elif character == '"':
            quoted = not quoted
            started = True
        elif character.isspace() and not quoted:
            if started:
                found.append("".join(word))
                word, started = [], False
        else:
            word.append(character)
            started = True
        position += 1
    if quoted:
        raise SaveError(f"a quote is not closed in: {line}")
    if started:
        found.append("".join(word))
    return found


def _parse_rule(line: str) -> Rule:
    text = line
    if text.startswith("["):  # counters, as iptables-save -c writes them
        text = text.partition("] ")[2]
    parts = words(text)
    if len(parts) < 2 or parts[0] != "-A":
        raise SaveError(f"not a rule of iptables-save: {line}")
    target = None
    sets: list[str] = []
    for index, part in enumerate(parts[:-1]):
        if parts[index - 1] == "--comment":  # a comment may read like an option
            continue
        if part in ("-j", "-g", "--jump", "--goto"):
            target = parts[index + 1]
        elif part in ("--match-set", "--add-set", "--del-set", "--map-set"):
            sets.append(parts[index + 1])
    return Rule(text, line, parts[1], target, tuple(sets))


def parse(text: str) -> tuple[Table, ...]:
    """Return the tables of a dump in their order; an empty dump has none.

    Raises SaveError, naming the line, for text that is not complete iptables-save output: acting on half a dump would
    leave references behind.
    """
    tables: list[Table] = []
    name: str | None = None
    chains: list[Chain] = []
    rules: list[Rule] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("*") and name is None:
            name, chains, rules = line[1:].strip(), [], []
        elif name is None:
            raise SaveError(f"line {number} is outside a table: {line}")
        elif line == "COMMIT":
            tables.append(Table(name, tuple(chains), tuple(rules)))
            name = None
        elif line.startswith(":"):
            fields = line[1:].split()
            if len(fields) < 2:
                raise SaveError(f"line {number} is not a chain: {line}")
            chains.append(Chain(fields[0], fields[1], line))
        else:
            rules.append(_parse_rule(line))
    if name is not None:
        raise SaveError(f"table {name} does not end in COMMIT; the dump was cut off")
    return tuple(tables)


def left_out(text: str) -> tuple[str, ...]:
    """Return the tables that iptables-nft does not show, because nft put rules into them that it has no words for.

    It says so in a comment, and succeeds (cloudnativelabs/kube-router#1588).
    """
    return tuple(found["name"] for found in map(_LEFT_OUT.match, text.splitlines()) if found)


def render(tables: tuple[Table, ...]) -> str:
    """Write tables as iptables-save does, without its dated comments."""
    lines: list[str] = []
    for table in tables:
        lines.append("*" + table.name)
        lines.extend(chain.line for chain in table.chains)
        lines.extend(rule.line for rule in table.rules)
        lines.append("COMMIT")
    return "".join(line + "\n" for line in lines)
