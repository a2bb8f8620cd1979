# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a person is told about a change of the kernel: complete, in order, bounded."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import FrontendState
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._report import frontend_changes
from ansible_collections.kproxy.dataplane.plugins.module_utils._report.frontend_changes import (
    compare,
    diff,
    summary,
)

TCP = 6
WEB = FrontendKey(4, parse_address("10.96.0.20"), TCP, 80)
WEB_NODE_PORT = FrontendKey(4, b"", TCP, 30080)
DNS = FrontendKey(4, parse_address("10.96.0.10"), TCP, 53)


def state(service: str, *endpoints: str, verdict: str = "dnat", local: tuple[str, ...] = ()) -> FrontendState:
    """Return a frontend's state; endpoints are written as the last part of a pod address."""
    return FrontendState(
        service,
        verdict,
        tuple((parse_address(f"10.244.1.{end}"), 8080) for end in endpoints),
        tuple((parse_address(f"10.244.1.{end}"), 8080) for end in local),
    )


A = state("shop/web:http", "5")
CASES = [
    ("nothing changes", {WEB: A}, {WEB: A}, [], []),
    (
        "a service comes",
        {},
        {WEB: A},
        [],
        ["shop/web:http: 10.96.0.20:80/TCP dnat", "shop/web:http: endpoint 10.244.1.5:8080"],
    ),
    (
        "a service goes",
        {WEB: A},
        {},
        ["shop/web:http: 10.96.0.20:80/TCP dnat", "shop/web:http: endpoint 10.244.1.5:8080"],
        [],
    ),
    (
        "an endpoint comes, others are not told",
        {WEB: A, DNS: state("kube-system/dns:dns", "9")},
        {WEB: state("shop/web:http", "5", "6"), DNS: state("kube-system/dns:dns", "9")},
        [],
        ["shop/web:http: endpoint 10.244.1.6:8080"],
    ),
    (
        "a pod is replaced",
        {WEB: A},
        {WEB: state("shop/web:http", "7")},
        ["shop/web:http: endpoint 10.244.1.5:8080"],
        ["shop/web:http: endpoint 10.244.1.7:8080"],
    ),
    (
        "the last endpoint goes",
        {WEB: A},
        {WEB: state("shop/web:http", verdict="reject")},
        ["shop/web:http: 10.96.0.20:80/TCP dnat", "shop/web:http: endpoint 10.244.1.5:8080"],
        ["shop/web:http: 10.96.0.20:80/TCP reject"],
    ),
    (
        "a second address of a service that is served already",
        {WEB: A},
        {WEB: A, WEB_NODE_PORT: A},
        [],
        ["shop/web:http: node:30080 (IPv4)/TCP dnat"],
    ),
    (
        "an endpoint under the Local policy",
        {WEB_NODE_PORT: A},
        {WEB_NODE_PORT: state("shop/web:http", "5", local=("5",))},
        [],
        ["shop/web:http: endpoint 10.244.1.5:8080 under the Local policy"],
    ),
]


@pytest.mark.parametrize(("name", "before", "after", "gone", "come"), CASES, ids=[case[0] for case in CASES])
def test_lines(
    name: str,
    before: dict[FrontendKey, FrontendState],
    after: dict[FrontendKey, FrontendState],
    gone: list[str],
    come: list[str],
) -> None:
    changes = compare(before, after)
    assert [str(fact) for fact in changes.before] == gone
    assert [str(fact) for fact in changes.after] == come
    shown = diff(changes)
    assert (shown["before"].splitlines(), shown["after"].splitlines()) == (gone, come)


def test_the_order_of_the_states_does_not_matter() -> None:
    first = {WEB: state("shop/web:http", "5", "6"), DNS: state("kube-system/dns:dns", "9")}
    assert diff(compare({}, first)) == diff(compare({}, dict(reversed(first.items()))))


def test_a_long_diff_says_how_much_it_left_out() -> None:
    endpoints = [str(number) for number in range(1, 255)] * 2
    many = {
        FrontendKey(4, bytes((10, 96, 1, number)), TCP, 80): state(f"shop/web-{number}:http", *endpoints)
        for number in range(1, 5)
    }
    lines = diff(compare({}, many))["after"].splitlines()
    assert len(lines) == frontend_changes.MAX_LINES + 1
    assert lines[-1] == f"... and {4 * 255 - frontend_changes.MAX_LINES} lines more"


def test_what_no_frontend_shows_is_told_too() -> None:
    assert diff(compare({}, {}), ["3 elements of source ranges"])["after"] == "3 elements of source ranges\n"


def test_summary_pairs_what_goes_with_what_comes() -> None:
    before = {WEB: state("shop/web:http", "5", "6"), DNS: state("kube-system/dns:dns", "9")}
    after = {WEB: state("shop/web:http", "6", "7", "8"), DNS: state("kube-system/dns:dns", verdict="reject")}
    assert summary(compare(before, after)) == {
        "added": ["shop/web:http 10.244.1.8:8080"],
        "removed": ["kube-system/dns:dns 10.244.1.9:8080"],
        "moved": ["shop/web:http 10.244.1.5:8080 -> 10.244.1.7:8080"],
        "counts": {"added": 1, "removed": 1, "moved": 1},
    }
