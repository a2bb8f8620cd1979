# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Values of other people's objects in our messages: short, printable, whatever they are."""

from __future__ import annotations

_MAX_CHARS = 80


def shown(value: object) -> str:
    """Return a value as a message quotes it: texts and numbers cut short, anything with an inside by its type."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _MAX_CHARS else "%r..." % value[:_MAX_CHARS]
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and value.bit_length() <= 128):
        return repr(value)
    return "a value of type %s" % type(value).__name__
