# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which slot of the filter a flow has. The programs' own hash is compared in tests/packets/ebpf/test_flow_filter.py."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flow_filter, flows
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flows import End


def end(ip: str, port: int) -> End:
    return ipaddress.ip_address(ip).packed, port


CLIENT, VIP, POD = end("198.51.100.9", 40000), end("10.96.0.1", 80), end("10.244.1.5", 8080)
CLIENT6, VIP6, POD6 = end("2001:db8:f::9", 40000), end("fd00:10:96::1", 80), end("fd00:10:244::5", 8080)


@pytest.mark.parametrize(
    ("source", "destination", "slot"),
    [
        (CLIENT, VIP, 37031),
        (CLIENT, POD, 73528),
        (CLIENT6, VIP6, 24446),
        (CLIENT6, POD6, 49297),
        (end("0.0.0.0", 0), end("0.0.0.0", 0), 0),
        (end("255.255.255.255", 65535), end("255.255.255.255", 65535), 100262),
    ],
)
def test_slots_are_what_they_were(source: End, destination: End, slot: int) -> None:
    """Programs of two versions share the filter: another hash is another layout."""
    assert flow_filter.slot_of(flows.pack_key(source, destination, 6, flows.INGRESS)) == slot


@pytest.mark.parametrize(("one", "other"), [(CLIENT, VIP), (CLIENT6, VIP6), (POD, POD)])
def test_all_entries_about_two_ends_share_a_slot(one: End, other: End) -> None:
    slots = {
        flow_filter.slot_of(flows.pack_key(source, destination, protocol, hook))
        for source, destination in ((one, other), (other, one))
        for protocol in (6, 17)
        for hook in (flows.INGRESS, flows.EGRESS)
    }
    assert len(slots) == 1


def ports_of_a_client(count: int) -> Iterator[tuple[End, End]]:
    for number in range(count):
        yield end("10.244.1.5", 32768 + number), VIP


def ports_of_a_client6(count: int) -> Iterator[tuple[End, End]]:
    for number in range(count):
        yield end("fd00:10:244::5", 32768 + number), VIP6


def neighbours(count: int) -> Iterator[tuple[End, End]]:
    for number in range(count):
        yield end(f"10.244.{number >> 7}.{number & 127}", 40000), POD


def neighbours6(count: int) -> Iterator[tuple[End, End]]:
    for number in range(count):
        yield end(f"fd00:10:244::{number:x}", 40000), POD6


def pairs_of_one_sum(count: int) -> Iterator[tuple[End, End]]:
    """As one goes up, the other goes down: a sum of the ends would be the same for all."""
    for number in range(count):
        yield end("10.244.1.5", 10000 + number), end("10.244.1.6", 60000 - number)


@pytest.mark.parametrize("pairs", [ports_of_a_client, ports_of_a_client6, neighbours, neighbours6, pairs_of_one_sum])
def test_pairs_of_a_kind_spread_over_the_slots(pairs: Callable[[int], Iterator[tuple[End, End]]]) -> None:
    """A tenth worse than numbers drawn at random, at most: 8192 of those fill 7942 of 131072 slots."""
    slots = {flow_filter.slot_of(flows.pack_key(one, other, 6, flows.INGRESS)) for one, other in pairs(8192)}
    assert len(slots) > 7150
