# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the kernel holds in our tables, as far as we know it: read once, then kept up with our own commits."""

from __future__ import annotations

from typing import NamedTuple, Union

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.structure import sets
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Key, SetName, Transaction

#: What an element holds: nothing in a set, an endpoint in an endpoint map, (verdict, comment) in a verdict map.
Held = Union[None, bytes, tuple[str, str]]

_INTERVALS = (names.POD_ADDRESSES, names.NODE_PORT_ADDRESSES, names.SERVICE_CIDRS)


class FoundTable(NamedTuple):
    """Our table of one family as it was found in the kernel.

    digest covers all chains, rules, set declarations and the contents of sets that come from settings; it is equal
    while nobody altered them. about: what was recorded about the table's making.
    """

    exists: bool
    chains: frozenset[str]
    sets: frozenset[str]
    elements: dict[SetName, dict[Key, Held]]
    digest: str
    about: str


ABSENT = FoundTable(False, frozenset(), frozenset(), {}, "", "")


def element_sets(family: int) -> list[SetName]:
    """Return the sets whose elements come from Services and are kept in the mirror."""
    return [
        SetName(family, item.name) for item in sets(family) if item.name not in _INTERVALS and item.name != names.ABOUT
    ]


def interval_sets(family: int) -> list[SetName]:
    """Return the sets whose contents come from settings and count as structure."""
    return [SetName(family, name) for name in _INTERVALS]


def about_text(made_from: str, digest: str) -> str:
    """Return what is recorded about a table: the layout, the text it was made from, and what came of it."""
    return "layout %d, made from %s, structure %s" % (names.LAYOUT, made_from[:24], digest[:24])


def is_about_structure(about: str, digest: str) -> bool:
    """Tell whether the record of a table's making is of a structure of this digest."""
    return about.endswith(", structure %s" % digest[:24])


class Mirror:
    """Elements by set."""

    def __init__(self) -> None:
        self.elements: dict[SetName, dict[Key, Held]] = {}

    def of(self, set_name: SetName) -> dict[Key, Held]:
        """Return the elements of a set, for reading."""
        found = self.elements.get(set_name)
        if found is None:
            found = self.elements[set_name] = {}
        return found

    def accept(self, transaction: Transaction) -> None:
        """Take over what a committed transaction did."""
        for set_name, keys in transaction.deletes.items():
            held = self.of(set_name)
            for key in keys:
                held.pop(key, None)
        for set_name, elements in transaction.adds.items():
            held = self.of(set_name)
            for key, value, comment in elements:
                held[key] = (value, comment or "") if isinstance(value, str) else value

    def copy(self) -> Mirror:
        """Return a mirror that can be changed on its own, to see what a plan would lead to."""
        other = Mirror()
        other.elements = {set_name: dict(held) for set_name, held in self.elements.items()}
        return other
