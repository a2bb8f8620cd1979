"""What tests of the packet path stand on: programs loaded once for a file, a node that runs them, and one with pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.packets.ebpf.loaded_programs import Programs
from tests.packets.ebpf.one_node import World
from tests.packets.ebpf.program_node import PLACES, Node


@pytest.fixture(scope="module")
def loaded() -> Iterator[Programs]:
    made = Programs({})
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=[4, 6], ids=["ipv4", "ipv6"])
def node(request: pytest.FixtureRequest, loaded: Programs) -> Node:
    return Node(PLACES[request.param], loaded)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()
