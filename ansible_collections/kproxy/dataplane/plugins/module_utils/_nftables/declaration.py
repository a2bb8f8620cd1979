# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Spelling sets, chains and rules as nft text, and the text that makes a table be as declared."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import Prefix
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES


class FamilyWords(NamedTuple):
    """How nft spells things in one address family."""

    table: str
    header: str
    address_type: str
    loopback: str


WORDS = {
    4: FamilyWords("ip", "ip", "ipv4_addr", "127.0.0.0/8"),
    6: FamilyWords("ip6", "ip6", "ipv6_addr", "::1"),
}
#: Protocols that a Service can have, as nft spells them.
PROTOCOLS = [name.lower() for name in NAMES.values()]


class Declaration(NamedTuple):
    """A chain or set: how it is made, and the rules of a chain."""

    name: str
    make: str
    rules: tuple[str, ...] = ()


def verdict_map(name: str, types: str, comment: str) -> Declaration:
    """Return a map whose types are spelled out."""
    return Declaration(name, 'add map {table} %s { type %s ; comment "%s" ; }' % (name, types, comment))


def typeof(name: str, types: str, kind: str = "map") -> Declaration:
    """Return a map or set whose types are those of expressions."""
    return Declaration(name, "add %s {table} %s { typeof %s ; }" % (kind, name, types))


def plain_set(name: str, types: str, comment: str, interval: bool = False) -> Declaration:
    """Return a set whose types are spelled out."""
    flags = "flags interval ; " if interval else ""
    return Declaration(name, 'add set {table} %s { type %s ; %scomment "%s" ; }' % (name, types, flags, comment))


def base_chain(name: str, kind: str, hook: str, priority: int, rules: list[str]) -> Declaration:
    """Return a chain on a hook."""
    make = "add chain {table} %s { type %s hook %s priority %d ; policy accept ; }" % (name, kind, hook, priority)
    return Declaration(name, make, tuple(rules))


def chain(name: str, *rules: str) -> Declaration:
    """Return a chain that is only jumped to."""
    return Declaration(name, "add chain {table} %s" % name, rules)


def ensure_text(
    table_name: str,
    family: int,
    declared: list[Declaration],
    chains: list[Declaration],
    contents: dict[str, tuple[Prefix, ...]],
) -> str:
    """Return nft text that makes sets and chains be as declared, whatever their rules were before."""
    table = "%s %s" % (WORDS[family].table, table_name)
    lines = ["add table %s" % table]
    lines += [item.make.replace("{table}", table) for item in declared]
    lines += [item.make.replace("{table}", table) for item in chains]
    lines += ["flush chain %s %s" % (table, item.name) for item in chains]
    lines += ["add rule %s %s %s" % (table, item.name, rule) for item in chains for rule in item.rules]
    for name, prefixes in contents.items():
        lines.append("flush set %s %s" % (table, name))
        if prefixes:
            lines.append("add element %s %s { %s }" % (table, name, ", ".join(map(str, _disjoint(prefixes)))))
    return "\n".join(lines) + "\n"


def delete_text(table_name: str, family: int, chains: list[str], declared: list[str]) -> str:
    """Return nft text that removes chains and sets which nothing else names any more."""
    table = "%s %s" % (WORDS[family].table, table_name)
    lines = ["flush chain %s %s" % (table, name) for name in chains]
    # A map may lead to the chains, and only rules can name a map: sets go between rules and chains.
    lines += ["delete set %s %s" % (table, name) for name in declared]
    lines += ["delete chain %s %s" % (table, name) for name in chains]
    return "".join(line + "\n" for line in lines)


def delete_table_text(table_name: str, family: int) -> str:
    """Return nft text that removes a table of ours, which must exist."""
    return "delete table %s %s\n" % (WORDS[family].table, table_name)


def _disjoint(prefixes: tuple[Prefix, ...]) -> list[Prefix]:
    """Leave out prefixes that lie within another: an interval set refuses overlaps."""
    kept: list[Prefix] = []
    for prefix in sorted(prefixes, key=lambda item: item.length):
        if not any(other.contains(prefix.network) for other in kept):
            kept.append(prefix)
    return sorted(kept)
