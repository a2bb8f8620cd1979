# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How long to wait, and whom to ask next."""

from __future__ import annotations

import random

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_client import retry_after
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.backoff import Backoff
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.server_ring import ServerRing


class TestBackoff:
    def test_pauses_double_up_to_the_limit_and_are_never_less_than_half(self) -> None:
        backoff = Backoff(0.5, 10.0, random.Random(1))
        for longest in (0.5, 1, 2, 4, 8, 10, 10, 10):
            assert longest / 2 <= backoff.next() <= longest

    def test_success_begins_again(self) -> None:
        backoff = Backoff(0.5, 10.0)
        for _round in range(6):
            backoff.next()
        backoff.reset()
        assert backoff.next() <= 0.5

    def test_two_nodes_do_not_wait_alike(self) -> None:
        first, second = Backoff(1, 60, random.Random(1)), Backoff(1, 60, random.Random(2))
        assert [first.next() for _round in range(5)] != [second.next() for _round in range(5)]


RETRY_AFTER = [
    ("", 0.0),
    ("5", 5.0),
    ("0", 0.0),
    ("-3", 0.0),
    ("1e9", 300.0),
    ("nan", 0.0),
    ("inf", 0.0),
    ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0),
]


@pytest.mark.parametrize(("header", "seconds"), RETRY_AFTER)
def test_retry_after(header: str, seconds: float) -> None:
    assert retry_after(header) == seconds


# name, what happens in order: "-x" server x fails, "+x" server x works; then who is current, and whether the last
# failure may be followed by a try without a pause.
RING = [
    ("nothing happened", "", "a", None),
    ("the first fails", "-a", "b", True),
    ("two fail", "-a -b", "c", True),
    ("all fail: wait, and begin anew where the list goes on", "-a -b -c", "a", False),
    ("after the wait each gets its try again", "-a -b -c -a", "b", True),
    ("one that worked is worth a try", "-a -b +a -c", "a", True),
    ("a late failure of another thread does not push the current one away", "-a -a", "b", True),
    ("a failed one is stepped over", "-b -a", "c", True),
    ("a single success keeps the current server", "-a +b", "b", True),
]


@pytest.mark.parametrize(("name", "story", "current", "at_once"), RING, ids=[row[0] for row in RING])
def test_ring(name: str, story: str, current: str, at_once: bool | None) -> None:
    ring = ServerRing(["a", "b", "c", "a"])
    answer = None
    for step in story.split():
        if step[0] == "-":
            answer = ring.failed(step[1:])
        else:
            ring.worked(step[1:])
    assert (ring.current, answer) == (current, at_once)


def test_ring_of_one_always_waits() -> None:
    ring = ServerRing(["a"])
    assert [ring.failed("a"), ring.failed("a"), ring.current] == [False, False, "a"]


def test_ring_keeps_the_current_server_when_the_list_is_replaced() -> None:
    ring = ServerRing(["a", "b"])
    ring.failed("a")
    ring.replace(["c", "b"])
    assert ring.current == "b"
    ring.replace(["d", "e"])
    assert ring.current == "d"
    assert ring.failed("b"), "a server that left the list says nothing about those in it"
    assert ring.current == "d"


def test_ring_needs_a_server() -> None:
    with pytest.raises(ValueError, match="no API server"):
        ServerRing([])
