"""Maglev in the programs and in the maps: the choice that Python predicts, kept over restarts, and refused as a whole.

The programs run one packet at a time (BPF_PROG_TEST_RUN), since each choice is to be compared with a computed one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout, maglev
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert, parse
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import BpfFs, NodeCgroup
from tests.packets.ebpf import frames
from tests.packets.ebpf.frames import TCP, UDP, packed
from tests.packets.ebpf.loaded_programs import Programs

SIZE = 1021
SERVICE, PORT = 1, 80
VIP = {4: "192.0.2.100", 6: "2001:db8::100"}
CLIENTS = {4: "198.51.100.%d", 6: "2001:db8:f::%d"}
PODS = {4: [f"10.244.1.{number}" for number in range(1, 8)], 6: [f"fd00:10:244:1::{number}" for number in range(1, 8)]}


class Node:
    """What one node has in its maps; the endpoints lie in the slots as they are given. One node at a time."""

    def __init__(self, loaded: Programs, family: int, pods: list[str], affinity_seconds: int = 0) -> None:
        self.loaded, self.maps, self.family = loaded, loaded.maps, family
        self.slots = [layout.endpoint(packed(ip), 8080) for ip in pods]
        loaded.empty()
        self.maps["settings"].put(bytes(4), layout.Settings(1, 0, 2, bytes(4), bytes(16)).pack())
        number = layout.set_number(SERVICE, False)
        self.maps[f"slots{family}"].update({layout.slot_key(number, at): held for at, held in enumerate(self.slots)})
        self.maps[f"members{family}"].update({layout.member_key(number, held): bytes(4) for held in self.slots})
        self.maps[f"tables{family}"].put(layout.table_key(number), maglev.table_value(self.slots, SIZE))
        flags = layout.FRONTEND_MAGLEV | (layout.FRONTEND_AFFINITY if affinity_seconds else 0)
        value = layout.FrontendValue(SERVICE, len(pods), 0, affinity_seconds, (0, 0, 0), flags)
        for protocol in (TCP, UDP):
            loaded.put(
                f"frontends{family}",
                layout.frontend_key(family, packed(VIP[family]), protocol, PORT),
                value.pack(family),
            )

    def choice(self, client: str, sport: int, protocol: int) -> bytes:
        """Return the address that the first packet of a flow is sent on to."""
        build = frames.tcp if protocol == TCP else frames.udp
        packet = frames.frame(build(client, sport, VIP[self.family], PORT))
        _verdict, sent = bpf.run_once(self.loaded.loaded["tcx/ingress"], packet, b"")
        return sent[30:34] if self.family == 4 else sent[38:54]

    def table(self) -> list[bytes]:
        """Return the endpoint address of every entry."""
        return [
            layout.unpack_endpoint(self.slots[index])[0]
            for index in maglev.choose([maglev.identity(held) for held in self.slots], SIZE)
        ]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Programs]:
    made = Programs({"table_size": SIZE})
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize("family", [4, 6])
def test_every_node_chooses_what_the_table_says(loaded: Programs, family: int, protocol: int) -> None:
    flows = [(CLIENTS[family] % (1 + number % 9), 40000 + number) for number in range(120)]
    for pods in (PODS[family], PODS[family][::-1]):
        node = Node(loaded, family, pods)
        table = node.table()
        wanted = [
            table[maglev.flow_hash(packed(client), packed(VIP[family]), sport, PORT, protocol) % SIZE]
            for client, sport in flows
        ]
        assert [node.choice(client, sport, protocol) for client, sport in flows] == wanted
        assert set(wanted) == {packed(ip) for ip in PODS[family]}


@pytest.mark.parametrize("family", [4, 6])
def test_with_affinity_the_address_alone_decides(loaded: Programs, family: int) -> None:
    clients = [CLIENTS[family] % number for number in range(1, 41)]
    for pods in (PODS[family], PODS[family][::-1]):
        node = Node(loaded, family, pods, 60)
        table = node.table()
        wanted = [table[maglev.client_hash(packed(client)) % SIZE] for client in clients]
        for port in (40000, 40001):
            assert [node.choice(client, port, TCP) for client in clients] == wanted
        assert len(set(wanted)) > 3


@pytest.mark.parametrize("broken", ["no table", "a slot that is gone"])
def test_without_its_table_a_set_is_chosen_from_at_random(loaded: Programs, broken: str) -> None:
    node = Node(loaded, 4, PODS[4])
    key = layout.table_key(layout.set_number(SERVICE, False))
    if broken == "no table":
        node.maps["tables4"].delete([key])
    else:
        node.maps["tables4"].put(key, b"\xff" * layout.table_value_size(SIZE))
    chosen = {node.choice("198.51.100.9", sport, TCP) for sport in range(40000, 40200)}
    assert chosen == {packed(ip) for ip in PODS[4]}


class World:
    """A node namespace with its own bpffs and cgroup; backends come and go in it."""

    def __init__(self) -> None:
        self.node, self.bpffs = NetworkNamespace(), BpfFs()
        self.cgroup = NodeCgroup(f"kp-maglev-{os.getpid()}")
        self.backends: list[EbpfBackend] = []

    def engine(self, table_size: int, table_memory: int = 512) -> Engine:
        """Return a new process's engine; the pins are what they are."""
        options = Options(
            os.path.join(self.bpffs.path, "kproxy"), self.cgroup.path, table_size=table_size, table_memory=table_memory
        )
        with self.node.entered():
            self.backends.append(EbpfBackend(options=options))
        config = ProxyConfig.from_mapping({"nodeName": "n1", "clusterCIDR": "10.244.0.0/16"})
        return Engine(config, self.backends[-1])

    def sync(self, engine: Engine, changes: list[Change]) -> None:
        with self.node.entered():
            engine.apply(changes)
            engine.sync()

    @property
    def backend(self) -> EbpfBackend:
        return self.backends[-1]

    def tables(self) -> dict[bytes, bytes]:
        return self.backend.plane.read(("tables4",))["tables4"]

    def close(self) -> None:
        with self.node.entered():
            for backend in self.backends:
                backend.remove()
                backend.close()
        self.bpffs.close()
        self.cgroup.close()
        self.node.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    try:
        yield made
    finally:
        made.close()


def objects(services: int, pods: int) -> list[Change]:
    made: list[dict[str, Any]] = []
    for number in range(services):
        name = f"web-{number}"
        made += [
            {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name},
             "spec": {"type": "NodePort", "clusterIP": f"10.96.0.{number + 1}",
                      "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30000 + number}]}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
             "metadata": {"namespace": "shop", "name": name, "labels": {"kubernetes.io/service-name": name}},
             "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
             "endpoints": [{"addresses": [f"10.244.{number}.{pod + 1}"], "conditions": {"ready": True}}
                           for pod in range(pods)]},
        ]  # fmt: skip
    return [Upsert(obj) for document in made if (obj := parse(document)) is not None]


def test_a_restart_writes_no_table_and_another_size_writes_them_all(world: World) -> None:
    everything = objects(12, 3)
    world.sync(world.engine(251), everything)
    held = world.tables()
    assert len(held) == 12
    assert {len(value) for value in held.values()} == {layout.table_value_size(251)}

    again = world.engine(251)
    with world.node.entered():
        again.apply(everything)
        assert again.preview().size == 0
    world.sync(again, [])
    assert world.tables() == held

    world.sync(world.engine(509), everything)
    assert {len(value) for value in world.tables().values()} == {layout.table_value_size(509)}
    assert len(world.tables()) == 12
    assert world.backend.plane.current()

    world.sync(world.engine(0), everything)
    assert world.tables() == {}


def test_looking_at_maps_of_another_size_changes_nothing(world: World) -> None:
    everything = objects(2, 3)
    world.sync(world.engine(251), everything)
    held = world.tables()
    other = world.engine(509)
    with world.node.entered():
        other.apply(everything)
        assert other.preview().changes
    assert os.listdir(world.backend.plane.directory).count("maps_0") == 1
    assert [name for name in os.listdir(world.backend.plane.directory) if name.startswith("maps_")] == ["maps_0"]
    assert world.backends[0].plane.read(("tables4",))["tables4"] == held


def test_tables_that_take_too_much_memory_are_refused_and_what_was_there_stays(world: World) -> None:
    first, second = objects(2, 2), objects(20, 2)
    engine = world.engine(16381, table_memory=1)
    world.sync(engine, first)
    with pytest.raises(CommitError, match="16381 entries for 20 endpoint sets need 2 MiB of kernel memory, 1 MiB are"):
        world.sync(engine, second)
    assert len(world.tables()) == 2
    assert len(world.backend.plane.read(("frontends4",))["frontends4"]) == 4
