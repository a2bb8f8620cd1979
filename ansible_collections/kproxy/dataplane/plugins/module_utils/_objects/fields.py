# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Reading fields of a manifest: absent and null are the default, a wrong type names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.shown import shown

MAX_NAME_LENGTH = 253
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


class FieldError(ValueError):
    """A field has a wrong type or value; the message names it by its path."""


def mapping(parent: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    """Return an object field; absent or null is empty."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FieldError("%s must be an object, not %s" % (path, type(value).__name__))
    return value


def sequence(parent: Mapping[str, Any], key: str, path: str) -> list[Any]:
    """Return a list field; absent or null is empty."""
    value = parent.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise FieldError("%s must be a list, not %s" % (path, type(value).__name__))
    return value


def text(parent: Mapping[str, Any], key: str, path: str) -> str:
    """Return a string field; absent or null is empty. No field of ours may hold line ends or other controls."""
    value = parent.get(key)
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        # What YAML makes of on, no, 1e3 and 1_000.
        raise FieldError("%s must be a string, not %s: put it in quotes" % (path, shown(value)))
    if not isinstance(value, str):
        raise FieldError("%s must be a string, not %s" % (path, type(value).__name__))
    if not value.isprintable():
        raise FieldError("%s must be printable text, not %s" % (path, shown(value)))
    return value


def name(parent: Mapping[str, Any], key: str, path: str) -> str:
    """Return a field that names an object or namespace: a DNS subdomain (RFC 1123); absent or null is empty."""
    value = text(parent, key, path)
    if len(value) > MAX_NAME_LENGTH:
        raise FieldError("%s is longer than %d characters" % (path, MAX_NAME_LENGTH))
    if value and not _NAME.fullmatch(value):
        raise FieldError("%s must be of a-z, 0-9, '-' and '.', not %s" % (path, shown(value)))
    return value


def boolean(parent: Mapping[str, Any], key: str, path: str) -> bool | None:
    """Return a boolean field; absent or null is None."""
    value = parent.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise FieldError("%s must be true or false, not %s" % (path, shown(value)))


def integer(parent: Mapping[str, Any], key: str, path: str, low: int, high: int) -> int | None:
    """Return an integer field within [low, high]; absent or null is None."""
    value = parent.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        advice = ": write it without quotes" if isinstance(value, str) and value.isdigit() else ""
        raise FieldError("%s must be a number, not %s%s" % (path, shown(value), advice))
    if not low <= value <= high:
        raise FieldError("%s must be between %d and %d, not %s" % (path, low, high, shown(value)))
    return value


def choice(parent: Mapping[str, Any], key: str, path: str, allowed: tuple[str, ...]) -> str:
    """Return a string field that must be one of allowed; absent, null or empty is the first of them."""
    value = text(parent, key, path) or allowed[0]
    if value not in allowed:
        raise FieldError("%s must be one of %s, not %s" % (path, ", ".join(allowed), shown(value)))
    return value


def labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return metadata.labels."""
    found = mapping(metadata, "labels", "metadata.labels")
    for key, value in found.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise FieldError(
                "metadata.labels must map strings to strings, not %s to %s: put both in quotes"
                % (shown(key), shown(value))
            )
    return dict(found)
