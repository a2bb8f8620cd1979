"""Programs, maps and layouts replaced under traffic through every hook: no connection, call or datagram is lost.

Each replacement is a backend made anew, as after a kill -9 or an upgrade: nothing is handed over but what is pinned.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import socket
from collections.abc import Callable

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout, served_blocks
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import TABLES
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_flow_filter import FlowFilter
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_migration import generations
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Delete, Upsert, parse
from tests.packets.ebpf.one_node import POD, World, objects, slices
from tests.packets.ebpf.traffic import FRONTEND, SECONDS, VIP, Traffic

REPLACEMENTS = 3


def restarted(world: World, _patch: pytest.MonkeyPatch, _number: int) -> EbpfBackend:
    return world.another_backend()


def other_programs(world: World, _patch: pytest.MonkeyPatch, number: int) -> EbpfBackend:
    """Another version's programs: the same ones after some instructions that do nothing."""
    backend = world.another_backend()
    idle = bytes.fromhex("b700000000000000") * (number + 1)
    for name, parsed in backend.plane.objects.items():
        programs = tuple(
            program._replace(
                instructions=idle + program.instructions,
                references=tuple(one._replace(instruction=one.instruction + len(idle)) for one in program.references),
            )
            for program in parsed.programs
        )
        backend.plane.objects[name] = parsed._replace(programs=programs)
    plane = backend.plane
    plane.sockets.parsed, plane.packets.parsed, plane.xdp.parsed = (
        plane.objects[name] for name in ("sock", "tc", "xdp")
    )
    return backend


def larger_maps(world: World, patch: pytest.MonkeyPatch, number: int) -> EbpfBackend:
    """Maps that must move, since more is to fit into them."""
    backend = world.another_backend()
    room = world.backend.plane.room() if number == 0 else {}
    size = room.get("slots4", 65536) * (number + 2)
    patch.setattr(ebpf_backend, "room_for", lambda needed: {**dict.fromkeys(needed, 0), "slots4": size})
    patch.setattr(backend.plane, "fits", lambda _needed: False)
    return backend


def another_layout(world: World, patch: pytest.MonkeyPatch, number: int) -> EbpfBackend:
    """A version whose maps are laid out otherwise, but for what the programs learn. Once there was no filter."""
    if number == 0:
        with FlowFilter(world.backend.plane.maps["flow_filter"]) as held:
            held.stop()
        patch.setattr(layout, "LEARNED_SINCE", {**layout.LEARNED_SINCE, "flow_filter": 100})
    patch.setattr(layout, "SCHEMA", number + 100)
    return world.another_backend()


def serves(backend: EbpfBackend, ip: str) -> bool:
    """Whether the blocks are in use and say that this address is served."""
    held = backend.plane.maps["served_blocks"].get(bytes(4)) or b""
    (slot,) = served_blocks.slots_of(4, [socket.inet_aton(ip)])
    return (held[0], held[served_blocks.STATE_BYTES + slot]) == (1, 1)


def other_service() -> list[Change]:
    """A Service without endpoints that has as many ports as the one that serves."""
    made = parse({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "another"},
        "spec": {"clusterIP": "10.96.0.2", "ports": [
            {"name": "t", "port": 80, "protocol": "TCP"}, {"name": "u", "port": 80, "protocol": "UDP"}]},
    })  # fmt: skip
    assert made is not None
    return [Upsert(made)]


WAYS = [restarted, other_programs, larger_maps, another_layout]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__.replace("_", "-") for way in WAYS])
def test_nothing_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, way: Callable[[World, pytest.MonkeyPatch, int], EbpfBackend]
) -> None:
    everything = [*objects(), *slices()]
    world.sync(*everything)
    hooks = sorted(world.backend.plane.attached())
    backend = world.backend
    traffic = Traffic(world)
    try:
        traffic.wait()
        for number in range(REPLACEMENTS):
            backend = way(world, monkeypatch, number)
            with world.node.entered():
                engine = Engine(world.engine.config, backend)
                engine.apply(everything)
                engine.sync()
            assert sorted(backend.plane.attached()) == hooks
            assert list(generations(backend.plane.directory)) == [number + 1 if way is larger_maps else 0]
            with FlowFilter(backend.plane.maps["flow_filter"]) as held:
                assert held.in_use
            assert serves(backend, VIP[0])
            traffic.wait()
        assert traffic.lost == []
    finally:
        traffic.close()
        with world.node.entered():
            backend.remove()
    assert not world.backend.plane.former()


def test_a_move_that_was_cut_short_is_finished(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between making the larger maps and swapping the links: what runs still uses the smaller ones."""
    everything = [*objects(), *slices()]
    world.sync(*everything)
    cut_short = larger_maps(world, monkeypatch, 0)
    with world.node.entered():
        cut_short.plane.open({"slots4": world.backend.plane.room()["slots4"] * 2})
    monkeypatch.undo()
    with world.node.entered():
        again = Engine(world.engine.config, world.another_backend())
        again.apply(everything)
        assert again.preview().changes
        assert again.sync().wrote
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    with world.client_socket(world.client, 4, socket.SOCK_STREAM) as client:
        client.connect(FRONTEND)
        server.accept()[0].close()
    plane = world.another_backend().plane
    plane.adopt()
    assert plane.current()
    assert len(plane.read(("flows4",))["flows4"]) == 4


def upgraded(world: World, patch: pytest.MonkeyPatch) -> None:
    """Another layout from here on."""
    patch.setattr(layout, "SCHEMA", layout.SCHEMA + 1)


def upgrade_cut_short(world: World, patch: pytest.MonkeyPatch) -> None:
    """Killed when the maps of another layout were made, and filled in part."""
    upgraded(world, patch)
    with world.node.entered():
        plane = world.another_backend().plane
        plane.open({})
        ((key, value), *_others) = world.backend.plane.read(("frontends6",))["frontends6"].items()
        plane.maps["frontends6"].put(key, value)


def move_cut_short(world: World, patch: pytest.MonkeyPatch) -> None:
    """Killed when larger maps were made, before anything was carried over to them."""
    larger = world.backend.plane.room()["slots4"] * 2
    with world.node.entered(), patch.context() as killed:
        killed.setattr(Dataplane, "_carry_over", lambda *_: None)
        world.another_backend().plane.open({"slots4": larger})


def move_refused(world: World, patch: pytest.MonkeyPatch) -> None:
    """The kernel has no memory for larger maps."""
    larger = world.backend.plane.room()["slots4"] * 2

    def create(name: str, *rest: int) -> int:
        if name == "kp_slots4":
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        return made(name, *rest)

    made = bpf_syscall.map_create
    with world.node.entered(), patch.context() as short:
        short.setattr(bpf_syscall, "map_create", create)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            world.another_backend().plane.open({"slots4": larger})


def move_not_tidied(world: World, patch: pytest.MonkeyPatch) -> None:
    """Killed when all programs ran on the larger maps, before those they had run on were gone."""
    with world.node.entered(), patch.context() as killed:
        backend = larger_maps(world, killed, 0)
        killed.setattr(Dataplane, "retire_old", lambda _plane: None)
        engine = Engine(world.engine.config, backend)
        engine.apply([*objects(sessionAffinity="ClientIP"), *slices()])
        engine.sync()


INTERRUPTIONS = [upgraded, upgrade_cut_short, move_cut_short, move_refused, move_not_tidied]


@pytest.mark.parametrize("how", INTERRUPTIONS, ids=[how.__name__.replace("_", "-") for how in INTERRUPTIONS])
def test_what_was_learned_stays_with_its_service_port(
    world: World, monkeypatch: pytest.MonkeyPatch, how: Callable[[World, pytest.MonkeyPatch], None]
) -> None:
    """A number names a service port in all that the programs have learned, whoever hands numbers out now."""
    affine = objects(sessionAffinity="ClientIP")
    world.sync(*affine, *slices())
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_DGRAM)
    with (
        world.cgroup.socket(world.node.descriptor, socket.AF_INET, socket.SOCK_DGRAM) as inside,
        world.client_socket(world.client, 4, socket.SOCK_DGRAM) as outside,
    ):
        for client, address in ((inside, VIP), (outside, FRONTEND)):
            client.settimeout(SECONDS)
            client.connect(address)
            client.send(b"before")
            server.recv(64)
        pins = world.backend.plane.read(("affinity4",))["affinity4"]
        flows = world.backend.plane.read(("flows4",))["flows4"].keys()
        assert pins
        assert flows
        how(world, monkeypatch)
        with world.node.entered():
            backend = world.another_backend()
            again = Engine(world.engine.config, backend)
            # Whatever is new is named first, and whatever went away left a gap.
            again.apply([*other_service(), *affine, *slices()])
            again.sync()
        try:
            assert backend.plane.read(("affinity4",))["affinity4"].keys() == pins.keys()
            assert backend.plane.read(("flows4",))["flows4"].keys() == flows
            for client in (inside, outside):
                client.send(b"after")
                assert server.recv(64) == b"after"
            assert len(generations(backend.plane.directory)) == 1
            assert serves(backend, VIP[0])
        finally:
            with world.node.entered():
                backend.remove()


def crowd(number: int, ports: int, ips: int) -> list[Change]:
    """A Service with that many ports on that many external addresses; another one for every number."""
    made = parse({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": f"crowd-{number}"},
        "spec": {
            "clusterIP": f"10.96.1.{number}",
            "externalIPs": [f"203.0.{113 + number}.{last}" for last in range(1, ips + 1)],
            "ports": [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in range(1, ports + 1)],
        },
    })  # fmt: skip
    pods = parse({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": "shop", "name": f"crowd-{number}",
                     "labels": {"kubernetes.io/service-name": f"crowd-{number}"}},
        "ports": [{"name": f"p{port}", "port": 8080, "protocol": "TCP"} for port in range(1, ports + 1)],
        "endpoints": [{"addresses": [f"10.244.1.{last}"], "conditions": {"ready": True}} for last in (7, 8)],
    })  # fmt: skip
    assert made is not None
    assert pods is not None
    return [Upsert(made), Upsert(pods)]


def gone(number: int) -> list[Change]:
    return [Delete(kind, "shop", f"crowd-{number}") for kind in ("Service", "EndpointSlice")]


@pytest.mark.parametrize(("table_size", "ports", "ips"), [(0, 100, 105), (251, 30, 1)], ids=["frontends", "tables"])
@pytest.mark.parametrize("again", [False, True], ids=["running", "restarted"])
def test_all_may_be_replaced_in_one_commit(world: World, table_size: int, ports: int, ips: int, again: bool) -> None:
    """What comes is written before what goes is removed: maps that have room for either have to move."""
    backend = EbpfBackend(options=world.backend.options._replace(table_size=table_size))
    engine = Engine(world.engine.config, backend)
    try:
        with world.node.entered():
            engine.apply([*objects(), *slices(), *crowd(1, ports, min(ips, 70))])
            engine.sync()
            if again:
                backend.close()
                backend = EbpfBackend(options=backend.options)
                engine = Engine(world.engine.config, backend)
                engine.apply([*objects(), *slices(), *crowd(2, ports, ips)])
            else:
                engine.apply([*gone(1), *crowd(2, ports, ips)])
            engine.sync()
        held = backend.plane.read(("frontends4", "tables4"))
        assert len(held["frontends4"]) == ports * (ips + 1) + 4
        assert len(held["tables4"]) == (ports if table_size else 0)
        assert backend.plane.current()
    finally:
        with world.node.entered():
            backend.remove()


def test_a_node_may_have_any_number_of_addresses(world: World) -> None:
    """kube-proxy's ipvs mode gives a node the address of every Service."""
    everywhere = dataclasses.replace(world.engine.config, node_port_addresses=("0.0.0.0/0",))
    backend, pods = world.backend, [*objects(), *slices()]
    with world.node.entered():
        engine = Engine(everywhere, backend)
        engine.apply(pods)
        engine.sync()
        world.node.ip([f"addr add 10.99.{index // 250}.{index % 250 + 1}/32 dev up0" for index in range(1100)])
        backend.upkeep()
        assert len(backend.plane.read(("node_addrs4",))["node_addrs4"]) == 1101
        assert backend.plane.current()
        again = Engine(everywhere, world.another_backend())
        again.apply(pods)
        assert not again.preview().changes
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    with world.client_socket(world.client, 4, socket.SOCK_STREAM) as client:
        client.connect(FRONTEND)
        server.accept()[0].close()


@pytest.mark.parametrize("removed", ["", "v%d/links" % layout.SCHEMA, "v%d/maps_0" % layout.SCHEMA])
def test_pins_that_somebody_removed_come_back(world: World, removed: str) -> None:
    """What they kept is kept by kproxyd, too, but for the programs: those are attached again."""
    everything = [*objects(sessionAffinity="ClientIP"), *slices()]
    world.sync(*everything)
    pins = sorted(world.backend.plane.attached())
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_DGRAM)
    with (
        world.cgroup.socket(world.node.descriptor, socket.AF_INET, socket.SOCK_DGRAM) as inside,
        world.client_socket(world.client, 4, socket.SOCK_DGRAM) as outside,
    ):
        for client, address in ((inside, VIP), (outside, FRONTEND)):
            client.connect(address)
            client.send(b"before")
            assert server.recv(64) == b"before"
        shutil.rmtree(os.path.join(world.backend.options.root, removed))
        with world.node.entered():
            world.backend.upkeep()
            assert sorted(world.backend.plane.attached()) == pins
            again = Engine(world.engine.config, world.another_backend())
            again.apply(everything)
            assert not again.preview().changes
        for client in (inside, outside):
            client.send(b"after")
            assert server.recv(64) == b"after"
        with world.cgroup.socket(world.node.descriptor, socket.AF_INET, socket.SOCK_DGRAM) as another:
            another.connect(VIP)
            another.send(b"new")
            assert server.recv(64) == b"new"


def test_blocks_are_asked_after_a_first_start_that_was_cut_short(world: World) -> None:
    """Killed when the maps were made; whoever adopts them cannot tell them from those of a node without Services."""
    with world.node.entered():
        plane = world.another_backend().plane
        begun = MapSet(os.path.join(plane.directory, "maps_0"))
        for parsed in plane.objects.values():
            begun.ensure(parsed.maps, {}, dict.fromkeys(TABLES, layout.table_value_size(0)))
        begun.close()
    world.sync(*objects(), *slices())
    assert serves(world.backend, VIP[0])


def test_what_the_programs_learned_in_another_way_is_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.sync(*objects(), *slices())
    monkeypatch.setattr(layout, "SCHEMA", layout.SCHEMA + 1)
    monkeypatch.setattr(layout, "LEARNED_SINCE", {**layout.LEARNED_SINCE, "flows4": layout.SCHEMA})
    former = world.backend.plane
    with world.node.entered():
        backend = world.another_backend()
        engine = Engine(world.engine.config, backend)
        engine.apply([*objects(), *slices()])
        engine.sync()
        numbers = {name: held.info.number for name, held in backend.plane.maps.maps.items()}
        assert numbers["flows4"] != former.maps["flows4"].info.number
        assert numbers["flows6"] == former.maps["flows6"].info.number
        backend.remove()
