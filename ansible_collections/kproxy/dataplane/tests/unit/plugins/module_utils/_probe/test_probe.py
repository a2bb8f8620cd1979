# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What is dialled, and when a connection met what the table says."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.choice import choose
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.judge import judge

ENDPOINT = "10.244.1.5:8080"
DNAT = {"verdict": "dnat", "reason": "", "endpoints": [{"address": ENDPOINT}]}
REJECT = {"verdict": "reject", "reason": "no usable endpoint", "endpoints": []}
DROP = {"verdict": "drop", "reason": "none on this node", "endpoints": []}
PASS = {"verdict": "pass", "reason": "", "endpoints": []}


def row(kind: str, port: int, verdict: str = "dnat", **changes: Any) -> dict[str, Any]:
    """Return a row of the service table."""
    known = {
        "service": f"shop/{port:05}",
        "kind": kind,
        "family": "IPv4",
        "protocol": "TCP",
        "address": "" if kind == "node-port" else "10.96.0.1",
        "portNumber": port,
        "outsiders": {"verdict": verdict},
    }
    return {**known, **changes}


@pytest.mark.parametrize(
    ("expected", "result", "endpoint", "words"),
    [
        (DNAT, "connected", ENDPOINT, ""),
        (DNAT, "refused", ENDPOINT, ""),
        (DNAT, "silence", ENDPOINT, ""),
        (DNAT, "connected", "10.244.9.9:1", "was led to 10.244.9.9:1, expected one of 10.244.1.5:8080"),
        (DNAT, "silence", "", "was led nowhere (silence)"),
        (REJECT, "refused", "", ""),
        (REJECT, "silence", "", "expected to be refused at once: no usable endpoint"),
        (REJECT, "connected", ENDPOINT, "expected reject"),
        (DROP, "silence", "", ""),
        (DROP, "sent", "", ""),
        (DROP, "refused", "", "expected silence: none on this node"),
        (PASS, "refused", "", ""),
        (PASS, "connected", "", ""),
    ],
)
def test_judge(expected: dict[str, Any], result: str, endpoint: str, words: str) -> None:
    wrong = judge(expected, result, endpoint)
    assert bool(wrong) == bool(words)
    assert words in wrong


def test_long_lists_of_endpoints_are_cut() -> None:
    many = {**DNAT, "endpoints": [{"address": f"10.244.1.{number}:1"} for number in range(1, 10)]}
    assert judge(many, "silence", "").endswith("and 4 more")


def test_every_kind_and_verdict_is_dialled_and_no_more_than_asked_for() -> None:
    rows = [row("cluster-ip", port) for port in range(100)] + [
        row("cluster-ip", 200, "reject"),
        row("node-port", 30080),
    ]
    chosen = choose(rows, ["192.0.2.11", "2001:db8::1"], 3)
    assert [(goal.kind, goal.port) for goal in chosen] == [
        ("cluster-ip", 0),
        ("cluster-ip", 33),
        ("cluster-ip", 66),
        ("cluster-ip", 200),
        ("node-port", 30080),
    ]
    assert str(chosen[-1]) == "192.0.2.11:30080/TCP"
    assert choose(list(reversed(rows)), ["192.0.2.11"], 3) == chosen
    assert len(choose(rows, ["192.0.2.11"], 0)) == len(rows)


def test_node_ports_need_an_address_of_their_family() -> None:
    rows = [row("node-port", 30080, family="IPv6"), row("node-port", 30081, protocol="SCTP")]
    assert choose(rows, ["192.0.2.11"], 0) == []
    assert [str(goal) for goal in choose(rows, ["2001:db8::1"], 0)] == ["[2001:db8::1]:30080/TCP"]
