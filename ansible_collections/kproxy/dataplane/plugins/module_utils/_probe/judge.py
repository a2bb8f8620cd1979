# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether what a connection met is what the service table says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import REFUSED, SENT, SILENCE


def judge(expected: Mapping[str, Any], result: str, endpoint: str) -> str:
    """Return what is wrong, empty if nothing is.

    An endpoint that refuses or does not answer proves the translation no less: the dataplane led the client there.

    Args:
        expected: the table's answer for this client, as ``kproxyctl trace`` gives it.
        result: how the connection went.
        endpoint: where it was led, empty for nowhere.
    """
    verdict = expected["verdict"]
    if verdict == "dnat":
        endpoints = sorted(entry["address"] for entry in expected["endpoints"])
        if not endpoint:
            return f"was led nowhere ({result}), expected one of {_some(endpoints)}"
        if endpoint not in endpoints:
            return f"was led to {endpoint}, expected one of {_some(endpoints)}"
        return ""
    if endpoint and verdict in ("reject", "drop"):
        return f"was led to {endpoint}, expected {verdict}"
    if verdict == "reject" and result != REFUSED:
        return f"met {result}, expected to be refused at once: {expected['reason']}"
    if verdict == "drop" and result not in (SILENCE, SENT):
        return f"was {result}, expected silence: {expected['reason']}"
    return ""


def _some(endpoints: list[str]) -> str:
    shown = ", ".join(endpoints[:5])
    return f"{shown} and {len(endpoints) - 5} more" if len(endpoints) > 5 else shown
