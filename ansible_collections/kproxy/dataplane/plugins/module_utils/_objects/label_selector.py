# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Label selectors as kubectl takes them after -l: `app=web,tier in (front,api),!legacy`.

Grammar and meaning are those of k8s.io/apimachinery/pkg/labels, without its operators > and <.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

EQUAL = "in"
NOT_EQUAL = "notin"
EXISTS = "exists"
MISSING = "!"

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_PREFIX = r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?"
_KEY = f"(?:{_PREFIX}/)?{_NAME}"
_VALUE = re.compile(f"(?:{_NAME})?")
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<missing>!)\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})(?:\s*(?P<sign>==|=|!=)\s*(?P<value>[^,()\s=!]*)"
    r"|\s+(?P<word>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)


class SelectorError(ValueError):
    """A selector that cannot be read; the message shows the part."""


class Requirement(NamedTuple):
    """One condition on a label. `operator` is one of the constants above; a label that is missing is not equal."""

    key: str
    operator: str
    values: frozenset[str]

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the condition."""
        if self.operator == EQUAL:
            return self.key in labels and labels[self.key] in self.values
        if self.operator == NOT_EQUAL:
            return self.key not in labels or labels[self.key] not in self.values
        return (self.key in labels) == (self.operator == EXISTS)


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Return the conditions of a selector, all of which must hold; none for an empty one. Raises SelectorError."""
    found: list[Requirement] = []
    position = 0
    if not text.strip():
        return ()
    while True:
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise SelectorError(
                f"{text[position:].strip() or text!r} is no label selector; examples: app=web, tier in (front,api), "
                "owner!=ops, canary, !legacy"
            )
        found.append(_requirement(match))
        position = match.end()
        if text[match.end() - 1 : match.end()] != ",":
            return tuple(found)


def _requirement(match: re.Match[str]) -> Requirement:
    if match["missing"]:
        return Requirement(match["absent"], MISSING, frozenset())
    if match["sign"]:
        operator = NOT_EQUAL if match["sign"] == "!=" else EQUAL
        return Requirement(match["key"], operator, frozenset((_value(match["value"]),)))
    if match["word"]:
        values = frozenset(_value(value.strip()) for value in match["values"].split(","))
        return Requirement(match["key"], EQUAL if match["word"] == "in" else NOT_EQUAL, values)
    return Requirement(match["key"], EXISTS, frozenset())


def _value(text: str) -> str:
    if not _VALUE.fullmatch(text):
        raise SelectorError(f"{text!r} is no value of a label")
    return text
