"""The filter in front of the flow tables: what programs set in it, what they ask it, and building it beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flow_filter import slot_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_flow_filter
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flow_filter import rebuild
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_flow_filter import FlowFilter
from tests.packets.ebpf import frames
from tests.packets.ebpf.frames import ACK
from tests.packets.ebpf.program_node import IN, OUT, Node, Step, play

#: Of the test beside programs that run.
REBUILDS, FLOWS = 20, 200


def keys(node: Node) -> list[bytes]:
    return list(node.maps[f"flows{node.place.family}"].dump())


def slots(held: FlowFilter, array: int) -> set[int]:
    return {slot for slot, byte in enumerate(held.content(array)) if byte}


def plain(node: Node) -> None:
    node.frontend()
    node.run(IN, frames.tcp(node.place.client, 40000, node.place.vip, 80))


def masqueraded(node: Node) -> None:
    node.frontend(layout.MASQUERADE)
    node.run(IN, frames.udp(node.place.client, 40000, node.place.vip, 80))
    node.frontend(layout.MASQUERADE, protocol=frames.UDP)
    node.run(IN, frames.udp(node.place.client, 40000, node.place.vip, 80))


def of_a_pod(node: Node) -> None:
    node.frontend()
    node.run(IN, frames.tcp(node.place.other_pod, 40000, node.place.vip, 80))


def direct_return(node: Node) -> None:
    node.settings(layout.DSR_TUNNEL)
    node.frontend(layout.MASQUERADE, ip=node.place.other_pod)
    node.run(IN, frames.tcp(node.place.client, 40000, node.place.other_pod, 80))


def beside_a_live_one(node: Node) -> None:
    """A direct connection from the port of a translated one: kept apart by entries of its own."""
    plain(node)
    node.run(IN, frames.tcp(node.place.client, 40000, node.place.pod, 8080))


@pytest.mark.parametrize(
    ("opens", "entries"),
    [
        (plain, 2),
        (masqueraded, 4),
        (of_a_pod, 2),
        (direct_return, 2),
        (beside_a_live_one, 4),
    ],
)
def test_every_entry_has_its_slot_in_both_arrays(node: Node, opens: Callable[[Node], None], entries: int) -> None:
    """Also: the hash of the programs is the one of _ebpf/flow_filter.py."""
    opens(node)
    held_keys = keys(node)
    assert len(held_keys) == entries
    with node.programs.filter() as held:
        assert slots(held, 0) == slots(held, 1) == {slot_of(key) for key in held_keys}


@pytest.mark.parametrize("array", [0, 1])
def test_the_array_in_use_alone_says_what_is_looked_up(node: Node, array: int) -> None:
    p = node.place
    plain(node)
    dialled, sent = frames.tcp(p.client, 40000, p.vip, 80, ACK), frames.tcp(p.client, 40000, p.pod, 8080, ACK)
    answered, restored = frames.tcp(p.pod, 8080, p.client, 40000, ACK), frames.tcp(p.vip, 80, p.client, 40000, ACK)
    with node.programs.filter() as held:
        held.clear(array)
        held.read_from(1 - array)
        play(node, [Step(IN, dialled, sent), Step(OUT, answered, restored)])
        held.read_from(array)
        play(node, [Step(IN, dialled), Step(OUT, answered)])
        held.mark(array, map(slot_of, keys(node)))
        play(node, [Step(IN, dialled, sent), Step(OUT, answered, restored)])


def test_without_a_filter_everything_is_looked_up(node: Node) -> None:
    p = node.place
    plain(node)
    with node.programs.filter() as held:
        for array in (0, 1):
            held.clear(array)
        held.stop()
    play(node, [Step(IN, frames.tcp(p.client, 40000, p.vip, 80, ACK), frames.tcp(p.client, 40000, p.pod, 8080, ACK))])


def test_what_ended_flows_have_left_is_cleared(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    p, flows = node.place, node.maps[f"flows{node.place.family}"]
    plane: Any = SimpleNamespace(maps=node.maps, former=dict)
    node.frontend()
    for port in range(1024, 1024 + FLOWS):
        node.run(IN, frames.tcp(p.client, port, p.vip, 80))
    left = keys(node)[:3]
    flows.delete(set(flows.dump()) - set(left))
    monkeypatch.setattr(ebpf_flow_filter, "NEEDLESS_SLOTS", 10)
    assert ebpf_flow_filter.keep_filter(plane, len(left))
    with node.programs.filter() as held:
        assert held.in_use
        assert slots(held, held.array) == {slot_of(key) for key in left}
    assert not ebpf_flow_filter.keep_filter(plane, len(left))


def test_flows_are_found_while_it_is_built_anew(node: Node) -> None:
    """A connection is opened, and its next packets must find it, again and again, and so is the filter built."""
    p = node.place
    node.frontend()
    ended = threading.Event()
    failed: list[BaseException] = []

    def build() -> None:
        try:
            with node.programs.filter() as held:
                for _ in range(REBUILDS):
                    rebuild(held, lambda: keys(node))
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    builder = threading.Thread(target=build)
    builder.start()
    opened = 0
    try:
        while not ended.is_set() or opened < FLOWS:
            port = 1024 + opened % 60000
            play(node, [
                Step(IN, frames.tcp(p.client, port, p.vip, 80), frames.tcp(p.client, port, p.pod, 8080)),
                Step(OUT, frames.tcp(p.pod, 8080, p.client, port, ACK), frames.tcp(p.vip, 80, p.client, port, ACK)),
                Step(IN, frames.tcp(p.client, port, p.vip, 80, ACK), frames.tcp(p.client, port, p.pod, 8080, ACK)),
            ])  # fmt: skip
            opened += 1
    finally:
        builder.join()
    assert not failed
    with node.programs.filter() as held:
        assert {slot_of(key) for key in keys(node)} <= slots(held, held.array)
