"""Label and field selectors, as far as service proxies and this project's tools use them.

Grammar: Kubernetes documentation, "Labels and Selectors" and "Field Selectors".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Matcher = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^\s*(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*$")
_EQUALITY = re.compile(r"^\s*(?P<key>[^\s!=]+)\s*(?P<op>!=|==|=)\s*(?P<value>[^\s!=]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<bang>!?)\s*(?P<key>[^\s!=]+)\s*$")


class BadSelector(ValueError):
    """The selector cannot be read; the API server answers 400."""


def _requirements(selector: str) -> list[str]:
    """Split at commas that are not inside parentheses."""
    return [part for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def _requirement(text: str) -> Matcher:
    if found := _SET.match(text):
        key = found["key"]
        values = {value.strip() for value in found["values"].split(",")}
        if found["op"] == "in":
            return lambda labels: key in labels and labels[key] in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUALITY.match(text):
        key, wanted = found["key"], found["value"]
        if found["op"] == "!=":
            return lambda labels: labels.get(key) != wanted
        return lambda labels: labels.get(key) == wanted
    if found := _EXISTS.match(text):
        key = found["key"]
        if found["bang"]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise BadSelector(f"unable to parse requirement: {text!r}")


def label_selector(selector: str) -> Matcher:
    """Return a predicate over an object's labels. A missing key satisfies != and notin, as in Kubernetes."""
    matchers = [_requirement(part) for part in _requirements(selector)]
    return lambda labels: all(matches(labels) for matches in matchers)


def field_selector(selector: str, supported: frozenset[str]) -> Matcher:
    """Return a predicate over an object's selectable fields (see fields_of).

    Only =, == and != exist for fields, and a field the type does not offer is refused, as the API server does.
    """
    for part in _requirements(selector):
        found = _EQUALITY.match(part)
        if found is None:
            raise BadSelector(f"invalid field selector: {part!r}")
        if found["key"] not in supported:
            raise BadSelector(f"field label not supported: {found['key']}")
    return label_selector(selector)


METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})
SELECTABLE: Mapping[str, frozenset[str]] = {
    "Service": METADATA_FIELDS | {"spec.clusterIP", "spec.type"},
    "Pod": METADATA_FIELDS | {"spec.nodeName", "spec.hostNetwork", "status.phase", "status.podIP"},
}


def supported_fields(kind: str) -> frozenset[str]:
    """Return the field names a kind can be selected by."""
    return SELECTABLE.get(kind, METADATA_FIELDS)


def fields_of(kind: str, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the selectable fields of one object, as strings."""
    values = {}
    for path in supported_fields(kind):
        value: Any = manifest
        for step in path.split("."):
            value = value.get(step, "") if isinstance(value, Mapping) else ""
        values[path] = str(value)
    return values
