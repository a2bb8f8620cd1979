"""The blocks of addresses that are served: a frontend or cluster IP outside of them is not looked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout, served_blocks
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_served_blocks
from tests.packets.ebpf import frames
from tests.packets.ebpf.frames import packed
from tests.packets.ebpf.program_node import IN, OUT, SHOT, UNSPEC, Node, Place

ADDRESSES = {
    4: ["10.96.0.1", "203.0.113.80", "0.0.0.1", "255.255.255.254"],
    6: ["fd00:10:96::1", "2001:db8:cafe::80", "::2", "fd00:ffff:ffff:ffff:ffff:ffff:ffff:fffe"],
}

NONE_SERVED = b"\1" + bytes(served_blocks.VALUE_SIZE - 1)


def forget(node: Node) -> None:
    node.maps["served_blocks"].put(bytes(4), NONE_SERVED)


def ask_the_maps(node: Node) -> None:
    node.maps["served_blocks"].put(bytes(4), bytes(served_blocks.VALUE_SIZE))


def mark_alone(node: Node, ip: str) -> None:
    forget(node)
    bpf_served_blocks.mark(node.maps["served_blocks"], f"cluster_ips{node.place.family}", [packed(ip)])


def translated(node: Node, ip: str) -> bool:
    p = node.place
    return node.run(IN, frames.tcp(p.client, 40000, ip, 80))[1] == frames.tcp(p.client, 40000, p.pod, 8080)


@pytest.mark.parametrize("number", range(4))
def test_the_programs_ask_the_byte_that_was_set(node: Node, number: int) -> None:
    ip = ADDRESSES[node.place.family][number]
    node.frontend(ip=ip)
    forget(node)
    assert not translated(node, ip)
    mark_alone(node, ip)
    assert translated(node, ip)


def test_while_they_are_not_in_use_the_maps_are_asked(node: Node) -> None:
    node.frontend()
    ask_the_maps(node)
    assert translated(node, node.place.vip)


def test_node_ports_are_in_no_block(node: Node) -> None:
    node.frontend(ip="")
    forget(node)
    assert translated(node, node.place.node)


def silent(node: Node) -> None:
    node.frontend(layout.DROP)


@pytest.mark.parametrize(
    ("prepare", "hook", "port", "unmarked", "marked"),
    [
        # Of a service range, so dropped as an unused address.
        pytest.param(Node.frontend, IN, 81, SHOT, "refused", id="undefined-port"),
        pytest.param(silent, OUT, 80, SHOT, SHOT, id="of-the-node-itself-to-a-silent-one"),
        pytest.param(Node.frontend, OUT, 80, SHOT, UNSPEC, id="of-the-node-itself"),
    ],
)
def test_what_is_decided_by_cluster_ips(
    node: Node, prepare: Callable[[Node], None], hook: str, port: int, unmarked: int, marked: int | str
) -> None:
    p: Place = node.place
    prepare(node)
    packet = frames.tcp(p.node if hook == OUT else p.client, 40000, p.vip, port)
    forget(node)
    assert node.run(hook, packet, forwarded=False)[0] == unmarked
    mark_alone(node, p.vip)
    before = node.reason("undefined-port")
    verdict = node.run(hook, packet, forwarded=False)[0]
    if marked == "refused":
        assert node.reason("undefined-port") == before + 1
    else:
        assert verdict == marked
