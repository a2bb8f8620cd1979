"""Switching a node between nftables and eBPF: open connections live on, new ones move at once."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flow_lifetime
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_retirement
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flows import collect
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from devtools.waiting import LIMIT_SECONDS, eventually
from tests.packets.ebpf.one_node import NODE, POD, WAIT, World, objects, slices

FRONTEND = (NODE[4], 30080)


class Connection:
    """One open TCP connection through the NodePort."""

    def __init__(self, world: World, server: socket.socket) -> None:
        self.client = world.client_socket(world.client, 4, socket.SOCK_STREAM)
        self.client.connect(FRONTEND)
        self.accepted, _peer = server.accept()
        self.accepted.settimeout(WAIT)

    def works(self) -> bool:
        self.client.send(b"ping")
        received = self.accepted.recv(16)
        self.accepted.send(b"pong")
        return received == b"ping" and self.client.recv(16) == b"pong"

    def close(self) -> None:
        self.client.close()
        self.accepted.close()


def test_there_and_back_with_connections_held_open(world: World) -> None:
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    everything = [*objects(), *slices()]
    with world.node.entered():
        nftables = Engine(world.engine.config, NftablesBackend())
        nftables.apply(everything)
        nftables.sync()
    by_nftables = Connection(world, server)
    assert by_nftables.works()

    world.sync(*everything)
    assert by_nftables.works()
    by_ebpf = Connection(world, server)
    assert by_ebpf.works()
    flows = world.backend.plane.read(("flows4",))["flows4"]
    assert len(flows) == 4

    with world.node.entered():
        again = Engine(world.engine.config, NftablesBackend())
        again.apply(everything)
        again.sync()
        former = Dataplane(world.backend.plane.root, world.cgroup.path)
        assert former.drain() is True
    assert by_nftables.works()
    assert by_ebpf.works()
    last = Connection(world, server)
    assert last.works()
    assert len(former.read(("flows4",))["flows4"]) == 4
    assert collect(former).left == 4
    assert not [hook for hook in former.attached() if hook.startswith("cgroup")]
    former.close()
    for connection in (by_nftables, by_ebpf, last):
        connection.close()


class Retirement:
    """`kproxyctl retire` beside the test, in the node's namespace."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._pool = ThreadPoolExecutor(max_workers=1)
        self.ended: Future[str] = self._pool.submit(self._run)

    def _run(self) -> str:
        with self.world.node.entered():
            return ebpf_retirement.retire(self.world.backend.plane.root, pause_seconds=0.02)

    def close(self) -> None:
        self._pool.shutdown()


def hooks(world: World) -> list[str]:
    return sorted(world.backend.plane.attached())


def test_a_retirement_waits_for_the_last_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    world.sync(*objects(), *slices())
    connection = Connection(world, server)
    retirement = Retirement(world)
    eventually(lambda: not [hook for hook in hooks(world) if hook.startswith("cgroup")], "the sockets to be left alone")
    assert hooks(world)
    assert connection.works()
    assert not retirement.ended.done()
    # An ended connection is kept for some seconds for its last packets; here they have come.
    monkeypatch.setattr(flow_lifetime, "CLOSING_SECONDS", 0)
    connection.close()
    assert retirement.ended.result(LIMIT_SECONDS) == ebpf_retirement.REMOVED
    assert not world.backend.plane.exists()
    retirement.close()


def test_a_retirement_leaves_everything_to_a_backend_that_comes_back(world: World) -> None:
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    everything = [*objects(), *slices()]
    world.sync(*everything)
    connection, before = Connection(world, server), hooks(world)
    retirement = Retirement(world)
    eventually(lambda: hooks(world) != before, "the sockets to be left alone")
    with world.node.entered():
        again = Engine(world.engine.config, world.another_backend())
        again.apply(everything)
        assert again.sync().wrote
    assert retirement.ended.result(LIMIT_SECONDS) == ebpf_retirement.TAKEN_BACK
    retirement.close()
    assert hooks(world) == before
    assert connection.works()
    assert Connection(world, server).works()
