# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Durations as Kubernetes configuration files write them (Go's time.ParseDuration)."""

from __future__ import annotations

import re

_UNIT_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?)(h|ms|us|µs|ns|m|s)")


def seconds(text: str) -> float:
    """Return the seconds of `12h0m0s` and the like; `0` needs no unit. Raises ValueError that names the text."""
    if text == "0":
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write it as 12h0m0s")
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
