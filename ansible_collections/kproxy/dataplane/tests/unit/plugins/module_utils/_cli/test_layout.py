# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli import layout

DNAT = {"verdict": "dnat", "endpointSet": "cluster", "endpoints": 3, "masquerade": False}
FRONTEND = {
    "service": "shop/web", "port": "http", "protocol": "TCP", "kind": "cluster-ip", "family": "IPv4",
    "address": "10.96.0.9", "portNumber": 80, "outsiders": {**DNAT, "masquerade": True}, "pods": DNAT,
    "node": {"verdict": "drop"}, "endpoints": 3, "localEndpoints": 1, "affinitySeconds": 0,
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": "1.0.0", "node": "n1", "mode": "nftables", "source": "api", "startedAt": 1_800_000_000.0, "inStep": True,
    "waitingFor": [], "generation": 7, "lastCommitAt": 1_800_000_060.0, "failing": 0, "lastError": "",
    "objects": {"Service": 1, "EndpointSlice": 1, "Node": 1, "ServiceCIDR": 1}, "frontends": {"IPv4": 1, "IPv6": 0},
    "carriedBy": {"nftables": 1},
    "healthy": True, "nodeEligible": True, "foreignRepairs": 0, "sources": [], "refused": [], "leftOut": [],
    "notes": [], "conflicts": [], "problems": [], "residentBytes": 31 << 20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "sources", "line"),
    [
        pytest.param("api", [], "api", id="none yet"),
        pytest.param("api", [("Service", True, "https://a"), ("Node", True, "https://a")], "api, https://a", id="one"),
        pytest.param(
            "api", [("Service", True, "https://b"), ("Node", False, "https://a")], "api, https://b", id="moved"
        ),
        pytest.param("manifests:/etc/m", [("manifests", True, "/etc/m")], "manifests:/etc/m", id="manifests"),
    ],
)
def test_status_says_which_api_server_is_read(source: str, sources: list[tuple[str, bool, str]], line: str) -> None:
    rows = [{"kind": kind, "connected": there, "server": server, "detail": ""} for kind, there, server in sources]
    (said,) = [
        row for row in layout.status({**STATUS, "source": source, "sources": rows}) if row[2:].startswith("source")
    ]
    assert said.split(maxsplit=1)[1] == line


def test_columns_are_as_wide_as_their_widest_cell_and_end_without_blanks() -> None:
    assert layout.columns(("A", "LONG"), [("xxx", 1), ("y", "")]) == ["A    LONG", "xxx  1", "y"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "10.96.0.9:80/TCP"),
        ({"address": "fd00::9", "family": "IPv6", "protocol": "UDP"}, "[fd00::9]:80/UDP"),
        ({"address": "", "portNumber": 31080}, "node:31080/TCP (IPv4)"),
    ],
)
def test_frontends_are_written_as_people_write_them(changes: dict[str, Any], text: str) -> None:
    assert layout.frontend({**FRONTEND, **changes}) == text


def test_a_service_row_tells_what_each_kind_of_client_gets() -> None:
    header, row = layout.services([FRONTEND])
    assert row.split() == [
        "shop/web", "http", "cluster-ip", "10.96.0.9:80/TCP", "3", "1", "cluster(3)+masq", "cluster(3)", "drop",
    ]  # fmt: skip
    assert header.index("KIND") == row.index("cluster-ip")


@pytest.mark.parametrize("lay_out", [layout.services, layout.backends, layout.history])
def test_an_empty_answer_is_a_sentence(lay_out: Any) -> None:
    (line,) = lay_out([])
    assert " " in line


@pytest.mark.parametrize(
    ("changes", "first", "attention"),
    [
        ({}, "in step at generation 7 (nftables, node n1)", []),
        ({"inStep": False, "waitingFor": ["Node"]}, "NOT in step", ["waiting for the first list of Node"]),
        ({"inStep": False, "failing": 3, "lastError": "no"}, "NOT in step", ["commit failed 3 times: no"]),
        ({"refused": ["Service a/b: bad"]}, "in step", ["refused: Service a/b: bad"]),
        ({"leftOut": ["Service a/b: EINVAL"]}, "in step", ["the kernel refuses Service a/b: EINVAL"]),
        ({"sources": [{"kind": "Node", "connected": False, "server": "", "detail": "401"}]}, "in step", ["Node: 401"]),
        ({"notes": ["n"], "conflicts": ["c"], "problems": ["p"]}, "in step", ["n", "c", "p"]),
        ({"problems": ["p"], "leftAside": ["l"]}, "in step", ["p", "l"]),
    ],
)
def test_status_begins_with_the_verdict_and_ends_with_what_needs_attention(
    changes: dict[str, Any], first: str, attention: list[str]
) -> None:
    lines = layout.status({**STATUS, **changes})
    assert lines[0].startswith(first)
    found = [line.strip() for line in lines[lines.index("Needs attention:") + 1 :]] if attention else []
    assert found == attention
    assert ("Needs attention:" in lines) is bool(attention)


def test_status_tells_how_outsiders_are_forwarded_where_there_is_a_choice() -> None:
    assert not [line for line in layout.status(STATUS) if "forwarding" in line]
    outsiders = {
        "forwarding": "dsr-ipip", "xdp": {"eth0": "native", "eth1": "generic"},
        "xdpPackets": {"by-xdp": 40, "by-tc": 2}, "reasons": {"no-endpoint": 0, "source-range": 3},
    }  # fmt: skip
    lines = [" ".join(line.split()) for line in layout.status({**STATUS, "outsiders": outsiders})]
    assert "forwarding dsr-ipip" in lines
    assert "XDP eth0 native, eth1 generic: 40 packets sent on, 2 left to tc" in lines
    assert "not served source-range 3" in lines
    lines = [" ".join(line.split()) for line in layout.status({**STATUS, "outsiders": {**outsiders, "xdp": {}}})]
    assert "XDP on no device" in lines
    assert not [line for line in lines if line.startswith("excluded devices")]
    outsiders["excludedDevices"] = ["stor0", "wg0"]
    lines = [" ".join(line.split()) for line in layout.status({**STATUS, "outsiders": outsiders})]
    assert "excluded devices stor0, wg0" in lines


def test_history_names_three_causes_and_counts_the_rest() -> None:
    entry = {
        "time": 1_800_000_000.0, "action": "sync", "generation": 4, "seconds": 0.0021, "elements": 6, "changed": 2,
        "causes": ["a", "b", "c", "d"], "more_causes": 5,
    }  # fmt: skip
    _header, row = layout.history([entry])
    assert row.split(maxsplit=9) == [
        "2027-01-15", "08:00:00Z", "4", "sync", "6", "+0", "~2", "-0", "2.1", "a, b, c and 6 more",
    ]  # fmt: skip
    assert layout.history([{**entry, "error": "refused"}])[1].endswith("refused")


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"agrees": True}, ["the kernel holds exactly generation 7 (1.5 ms)", "not compared: packets"]),
        (
            {"foreign": ["x"], "elements": 2},
            ["the kernel differed in 2 elements and was repaired", "  x", "not compared: packets"],
        ),
        ({"error": "no"}, ["the kernel could not be brought in step: no"]),
    ],
)
def test_verify(changes: dict[str, Any], lines: list[str]) -> None:
    base = {
        "agrees": False,
        "error": "",
        "generation": 7,
        "seconds": 0.0015,
        "foreign": [],
        "elements": 0,
        "notCompared": ["packets"],
    }
    assert layout.verify({**base, **changes}) == lines
