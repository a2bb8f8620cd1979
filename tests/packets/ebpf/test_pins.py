"""Pins of ClientIP affinity go with what they are for, not by age alone: as with kube-proxy and our nftables tables."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change
from tests.packets.ebpf.one_node import NODE, POD, World, objects, slices

OTHER = {4: "10.244.1.6", 6: "fd00:10:244:1::6"}


def pins(world: World) -> int:
    return sum(map(len, world.backend.plane.read(("affinity4", "affinity6")).values()))


def go_on(world: World, *changes: Change) -> None:
    world.sync(*changes)


def start_anew(world: World, *changes: Change) -> None:
    """Let a new process find the change, made while nobody ran."""
    options = world.backend.options
    with world.node.entered():
        world.backend.close()
        world.backend = EbpfBackend(options=options)
        world.engine = Engine(world.engine.config, world.backend)
    world.sync(*changes)


@pytest.mark.parametrize("follow", [go_on, start_anew])
@pytest.mark.parametrize(
    ("changed", "left"),
    [
        pytest.param([*objects(), *slices()], 0, id="affinity-off"),
        pytest.param([*objects(sessionAffinity="ClientIP"), *slices(OTHER)], 0, id="endpoint-gone"),
        pytest.param([*objects(sessionAffinity="ClientIP", externalTrafficPolicy="Local"), *slices()], 2, id="policy"),
    ],
)
def test_pins_go_with_what_they_are_for(
    world: World, follow: Callable[..., None], changed: list[Change], left: int
) -> None:
    world.sync(*objects(sessionAffinity="ClientIP"), *slices())
    for family in (4, 6):
        server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
        with world.client_socket(world.client, family, socket.SOCK_STREAM) as client:
            client.connect((NODE[family], 30080))
            server.accept()[0].close()
    assert pins(world) == 2
    follow(world, *changed)
    assert pins(world) == left
