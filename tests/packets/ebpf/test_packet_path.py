"""The tc path with real packets: outsiders, routed pods and hairpin, through the engine and its eBPF backend.

Nobody's sockets are in the node's cgroup here, so every connection is translated on the wire.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import select
import socket

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_devices
from tests.packets.ebpf.one_node import CLIENT, CLUSTER_IP, NODE, POD, WAIT, World, objects, slices

BIG = os.urandom(1 << 20)


PATHS = [
    # what the client dials, policy, whom the endpoint sees
    pytest.param("node-port", "Cluster", "node", id="node-port"),
    pytest.param("node-port", "Local", "client", id="node-port-local"),
    pytest.param("cluster-ip", "Cluster", "node", id="cluster-ip-from-outside"),
]


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(("dialled", "policy", "seen"), PATHS)
def test_outsider(world: World, family: int, dialled: str, policy: str, seen: str) -> None:
    world.sync(*objects(externalTrafficPolicy=policy), *slices())
    to = (NODE[family], 30080) if dialled == "node-port" else (CLUSTER_IP[family], 80)
    expected = NODE[family] if seen == "node" else CLIENT[family]
    stream = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    with world.client_socket(world.client, family, socket.SOCK_STREAM) as client:
        client.connect(to)
        connection, peer = stream.accept()
        with connection:
            assert peer[0] == expected
            connection.settimeout(WAIT)
            client.settimeout(None)
            received = bytearray()
            client.setblocking(False)
            sent = 0
            while len(received) < len(BIG):
                readable, writable, _ = select.select([connection], [client] if sent < len(BIG) else [], [], WAIT)
                assert readable or writable, f"stalled after {len(received)} bytes"
                if writable:
                    with contextlib.suppress(BlockingIOError):
                        sent += client.send(BIG[sent : sent + 65536])
                if readable:
                    received += connection.recv(1 << 17)
            assert received == BIG
    datagrams = world.serve(world.pod, POD[family], 8080, socket.SOCK_DGRAM)
    with world.client_socket(world.client, family, socket.SOCK_DGRAM) as client:
        client.connect(to)
        # Larger than the MTU: fragments in both directions.
        client.send(BIG[:4000])
        question, peer = datagrams.recvfrom(8192)
        assert (question, peer[0]) == (BIG[:4000], expected)
        datagrams.sendto(BIG[4000:9000], peer)
        assert client.recv(8192) == BIG[4000:9000]


@pytest.mark.parametrize("affinity", ["None", "ClientIP"])
@pytest.mark.parametrize("family", [4, 6])
def test_pod_reaches_itself(world: World, family: int, affinity: str) -> None:
    """Case 12; the second connection follows the pin of the first."""
    world.sync(*objects(sessionAffinity=affinity), *slices())
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    for _ in range(2):
        with world.client_socket(world.pod, family, socket.SOCK_STREAM) as client:
            client.connect((CLUSTER_IP[family], 80))
            connection, peer = server.accept()
            with connection:
                assert peer[0] == NODE[family]


@pytest.mark.parametrize("family", [4, 6])
def test_refusals_and_silence(world: World, family: int) -> None:
    world.sync(*objects(), *slices({}))
    for to in ((NODE[family], 30080), (CLUSTER_IP[family], 80), (CLUSTER_IP[family], 81)):
        with world.client_socket(world.client, family, socket.SOCK_DGRAM) as client:
            client.connect(to)
            client.send(b"x")
            with pytest.raises(ConnectionRefusedError):
                client.recv(16)
    reasons = world.backend.plane.reasons()
    assert (reasons["no-endpoint"], reasons["undefined-port"]) == (2, 1)


@pytest.mark.parametrize("family", [4, 6])
def test_an_icmp_error_finds_its_way_back(world: World, family: int) -> None:
    """The endpoint's port is closed: its port-unreachable must reach the client as an error of what it dialled."""
    world.sync(*objects(), *slices())
    with world.client_socket(world.client, family, socket.SOCK_DGRAM) as client:
        client.connect((NODE[family], 30080))
        client.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            client.recv(16)


def test_ended_connections_leave_no_flow(world: World) -> None:
    world.sync(*objects(), *slices())
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    with world.client_socket(world.client, 4, socket.SOCK_STREAM) as client:
        client.connect((NODE[4], 30080))
        server.accept()[0].close()
        assert client.recv(1) == b""
    flows = world.backend.plane.read(("flows4",))["flows4"]
    assert len(flows) == 4
    assert world.backend.collect() == 0


def test_node_ports_stay_on_the_primary_address(world: World) -> None:
    world.sync(*objects(), *slices())
    world.node.ip(["addr add 192.0.2.200/32 dev up0"])
    with world.node.entered():
        world.backend.upkeep()
    held = world.backend.plane.read(("node_addrs4",))["node_addrs4"]
    # nodePortAddresses is `primary` here: a late address serves nothing.
    assert set(held) == {ipaddress.ip_address(NODE[4]).packed}


def test_new_devices_are_attached_and_gone_ones_forgotten(world: World) -> None:
    world.sync(*objects(), *slices())
    before = len(world.backend.plane.attached())
    world.node.ip(["link add dev late0 up type veth peer name late1"])
    with world.node.entered():
        world.backend.upkeep()
    assert len(world.backend.plane.attached()) == before + 4
    world.node.ip(["link del dev late0"])
    with world.node.entered():
        world.backend.upkeep()
    assert len(world.backend.plane.attached()) == before


def test_a_restart_swaps_programs_only_where_they_are_others(world: World) -> None:
    world.sync(*objects(), *slices())
    plane = world.backend.plane
    assert plane.current() is True
    with world.node.entered():
        again = Engine(world.engine.config, world.another_backend())
        again.apply([*objects(), *slices()])
        assert again.preview().changes is False
    shipped = plane.objects["tc"]
    # r0 = -1; exit: another version's programs, under the same names.
    other = bytes.fromhex("b7000000ffffffff9500000000000000")
    changed = tuple(program._replace(instructions=other, references=()) for program in shipped.programs)
    plane.objects["tc"] = shipped._replace(programs=changed)
    assert plane.current() is False


def test_clsact_serves_where_tcx_is_missing(world: World) -> None:
    world.backend.plane.packets.tcx = False
    world.sync(*objects(), *slices())
    assert not [hook for hook in world.backend.plane.attached() if hook.startswith("tcx")]
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    with world.client_socket(world.client, 4, socket.SOCK_STREAM) as client:
        client.connect((NODE[4], 30080))
        assert server.accept()[1][0] == NODE[4]
    # Unlike links, filters may be removed by anybody; the next look puts them back.
    with world.node.entered():
        for device in ("up0", "pod0"):
            bpf_devices.detach_clsact((way, socket.if_nametoindex(device)) for way in bpf_devices.BOTH)
    with world.client_socket(world.client, 4, socket.SOCK_STREAM) as client:
        assert client.connect_ex((NODE[4], 30080)) == errno.ECONNREFUSED
    with world.node.entered():
        world.backend.upkeep()
    with world.client_socket(world.client, 4, socket.SOCK_STREAM) as client:
        client.connect((NODE[4], 30080))
        assert server.accept()[1][0] == NODE[4]
    with world.node.entered():
        world.backend.remove()
    with world.client_socket(world.client, 4, socket.SOCK_STREAM) as client:
        assert client.connect_ex((NODE[4], 30080)) == errno.ECONNREFUSED
