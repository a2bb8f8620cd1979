# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What is dialled, and when a connection met what the table says."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.choice import choose
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.judge import (
    Met,
    judge,
    judge_affinity,
    judge_hairpin,
    judge_source,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.outcome import judge_spreads
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.peers import parse

ENDPOINT = "10.244.1.5:8080"
OTHER = "10.244.1.6:8080"
DNAT = {"verdict": "dnat", "reason": "", "endpoints": [{"address": ENDPOINT, "masqueraded": False}]}
MASQUERADED = {"verdict": "dnat", "reason": "", "endpoints": [{"address": ENDPOINT, "masqueraded": True}]}
NODE = {"192.0.2.11", "10.244.1.1"}
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
    wrong = judge(expected, Met(result, endpoint))
    assert bool(wrong) == bool(words)
    assert words in wrong


@pytest.mark.parametrize(
    ("expected", "seen", "at_socket", "words"),
    [
        (DNAT, "10.244.1.9", False, ""),
        (DNAT, "192.0.2.11", False, "expected its own address 10.244.1.9"),
        (DNAT, "", False, None),
        (MASQUERADED, "10.244.1.1", False, ""),
        (MASQUERADED, "10.244.1.9", False, "expected an address of this node"),
        (MASQUERADED, "10.244.1.9", True, ""),
        (MASQUERADED, "10.244.1.7", True, "expected an address of this node"),
        (REJECT, "10.244.1.9", False, None),
    ],
)
def test_judge_source(expected: dict[str, Any], seen: str, at_socket: bool, words: str | None) -> None:
    wrong = judge_source(expected, Met("connected", ENDPOINT, seen, at_socket), "10.244.1.9", NODE)
    assert (wrong is None) == (words is None)
    assert bool(wrong) == bool(words)
    assert (words or "") in (wrong or "")


@pytest.mark.parametrize(
    ("seen", "at_socket", "words"),
    [
        pytest.param("192.0.2.11", False, "", id="the address towards what it dialled"),
        pytest.param("10.244.1.1", True, "", id="the one towards the endpoint, to which the socket was led"),
        pytest.param("10.244.1.1", False, "who masquerades it?", id="no packet changes its source by itself"),
        pytest.param("192.0.2.99", True, "who masquerades it?", id="none of the node's"),
    ],
)
def test_judge_source_of_a_node_with_several_addresses(seen: str, at_socket: bool, words: str) -> None:
    wrong = judge_source(DNAT, Met("connected", ENDPOINT, seen, at_socket), "192.0.2.11", NODE)
    assert bool(wrong) == bool(words)
    assert words in (wrong or "")


@pytest.mark.parametrize(
    ("met", "source", "wrong"),
    [
        (Met("connected", ENDPOINT), "10.244.1.5", ""),
        (Met("refused", ENDPOINT), "10.244.1.5", ""),
        (Met("silence", ENDPOINT), "10.244.1.5", f"was led to itself ({ENDPOINT}) and got no answer"),
        (Met("silence", "[fd00::5]:80"), "fd00:0::5", "was led to itself ([fd00::5]:80) and got no answer"),
        (Met("sent", ENDPOINT), "10.244.1.5", None),
        (Met("silence", ENDPOINT), "10.244.1.6", None),
        (Met("silence"), "10.244.1.5", None),
    ],
)
def test_judge_hairpin(met: Met, source: str, wrong: str | None) -> None:
    assert judge_hairpin(met, source) == wrong


def test_judge_affinity() -> None:
    assert judge_affinity([ENDPOINT, ENDPOINT, ""]) == ""
    assert "2 endpoints in 3 connections" in judge_affinity([ENDPOINT, OTHER, ENDPOINT])


def test_the_chance_of_a_false_alarm_is_that_of_all_spreads_together() -> None:
    def result(first: int, second: int, for_spread: bool = True) -> dict[str, Any]:
        met = [ENDPOINT] * first + [OTHER] * second
        return {"endpoints": [ENDPOINT, OTHER], "met": met, "judged": [], "faults": [], "for_spread": for_spread}

    # 21 to 0 has a chance of 5e-7: too small for 1e-5 over both ends of two endpoints, not for a hundredth of that.
    results = [result(21, 0), result(21, 0, for_spread=False)]
    judge_spreads(results, 1e-5)
    assert [[fault["about"] for fault in item["faults"]] for item in results] == [["spread"], []]
    assert [item["judged"] for item in results] == [["spread"], []]
    assert results[0]["spread_suffices"] is True
    assert "for_spread" not in results[0]
    results = [result(21, 0), *(result(10, 11) for _number in range(99))]
    judge_spreads(results, 1e-5)
    assert [item["faults"] for item in results] == [[]] * 100
    assert results[0]["spread_suffices"] is False


PEERS = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:C350 0501F40A:1F90 01 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 000000FD000000000000000001000000:C351 000000FD000000000000000005000000:0050 02 0 0 0 0 0 3
   3: 0100007F:C350 0601F40A:1F90 06 00000000:00000000 03:00001752 00000000     0        0 0 3
"""


def test_peers_as_the_kernel_writes_them() -> None:
    assert parse(PEERS.splitlines()) == {
        1: ("10.244.1.5", 8080),
        3: ("fd00::5", 80),
    }


def test_long_lists_of_endpoints_are_cut() -> None:
    many = {**DNAT, "endpoints": [{"address": f"10.244.1.{number}:1"} for number in range(1, 10)]}
    assert judge(many, Met("silence")).endswith("and 4 more")


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


def test_services_with_affinity_are_chosen_apart() -> None:
    rows = [row("cluster-ip", port, affinitySeconds=600 if port == 50 else 0) for port in range(100)]
    assert [(goal.port, goal.affinity) for goal in choose(rows, [], 1)] == [(0, False), (50, True)]


def test_node_ports_need_an_address_of_their_family() -> None:
    rows = [row("node-port", 30080, family="IPv6"), row("node-port", 30081, protocol="SCTP")]
    assert choose(rows[:1], ["192.0.2.11"], 0) == []
    assert choose(rows[1:], ["192.0.2.11"], 0, ["TCP", "UDP"]) == []
    assert [str(goal) for goal in choose(rows, ["2001:db8::1"], 0)] == ["[2001:db8::1]:30080/TCP"]
