"""Which devices of a node have the packet programs, as they come, go, move and are renamed; and which are excluded."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_devices
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import XdpOptions, program_on
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import devices
from devtools.conformance.netns import NetworkNamespace
from tests.packets.ebpf.one_node import CLIENT, CLUSTER_IP, NODE, POD, WAIT, World, cidr, objects, slices

INGRESS, EGRESS = bpf_devices.BOTH
TCX = {INGRESS: 46, EGRESS: 47}
HERE, PORT, THERE = "02:00:00:00:00:01", "02:00:00:00:00:11", "02:00:00:00:00:09"


@pytest.fixture(params=[True, False], ids=["tcx", "clsact"])
def either(request: pytest.FixtureRequest, world: World) -> World:
    world.backend.plane.packets.tcx = request.param
    return world


def restart(world: World, excluded: tuple[str, ...] = (), xdp: str = "disabled") -> bool:
    """Go on with a backend made anew, with other options, as a new process would; whether it changed anything."""
    tcx = world.backend.plane.packets.tcx
    options = world.backend.options._replace(excluded=excluded, xdp=XdpOptions(xdp, ("up0", "late*")))
    with world.node.entered():
        world.backend.close()
        world.backend = EbpfBackend(options=options)
        world.backend.plane.packets.tcx = tcx
        world.engine = Engine(world.engine.config, world.backend)
        world.engine.apply([*objects(), *slices()])
        return world.engine.sync().wrote


def upkeep(world: World) -> None:
    with world.node.entered():
        world.backend.upkeep()


def held(world: World, ways: tuple[str, ...] = ()) -> set[str]:
    """The devices that have our programs, by what the kernel says: all that they should have, or of these ways."""
    packets = world.backend.plane.packets
    with world.node.entered():
        found = devices()
        if not ways:
            return packets.holding(found)
        indexes = {device.index: name for name, device in found.items()}
        if packets.tcx:
            every = indexes.items()
            return {name for index, name in every if all(bpf.attached_programs(index, TCX[way]) for way in ways)}
        hooks = {(way, index) for way in ways for index in indexes}
        return {indexes[index] for _way, index in bpf_devices.clsact_filtered(hooks)}


def dial(world: World, family: int = 4) -> int:
    """Dial the NodePort from outside; 0, or the error."""
    with world.client_socket(world.client, family, socket.SOCK_STREAM) as client:
        return client.connect_ex((NODE[family], 30080))


def test_a_device_under_the_index_of_one_that_has_gone_is_served(world: World) -> None:
    """Pods start and end in turn. The veth that a CNI plugin made in the pod keeps its index here if that is free."""
    world.sync(*objects(), *slices())
    restart(world, xdp="generic")
    world.node.ip(["link add dev late0 index 4321 up type veth peer name late1"])
    upkeep(world)
    with world.node.entered():
        assert program_on(4321)
    assert {"late0", "late1"} < held(world)
    world.node.ip(["link del dev late0", "link add dev late2 index 4321 up type veth peer name late3"])
    upkeep(world)
    assert {"late2", "late3"} < held(world)
    with world.node.entered():
        assert program_on(4321)


def test_a_device_that_moves_to_a_pod_leaves_its_programs_here(world: World) -> None:
    """Also where another device has come under its index meanwhile."""
    world.sync(*objects(), *slices())
    pod = NetworkNamespace()
    try:
        world.node.ip(["link add dev late0 index 4321 type veth peer name late1 index 4322"])
        upkeep(world)
        world.node.ip([f"link set dev late0 netns {pod.path}", "link add dev late2 index 4321 type bridge"])
        upkeep(world)
        with pod.entered():
            assert bpf.attached_programs(socket.if_nametoindex("late0"), TCX[INGRESS]) == ()
        with world.node.entered():
            assert len(bpf.attached_programs(socket.if_nametoindex("late2"), TCX[INGRESS])) == 1
        assert {"late1", "late2"} < held(world)
    finally:
        pod.close()


def make_bridge(world: World, device: str, ips: Collection[str]) -> None:
    """Put a bridge above a device of the node; it takes over the way to `ips`, and the node's own addresses."""
    world.node.ip([
        f"link add dev br0 address {HERE} type bridge",
        "link set dev br0 up",
        f"link set dev {device} master br0",
        f"link set dev {device} address {PORT}",
        *(f"addr replace {cidr(ip)} dev br0" + (" nodad" if ":" in ip else "") for ip in NODE.values()),
        *(f"route replace {cidr(ip)} dev br0" for ip in ips),
        *(f"neigh replace {ip} lladdr {THERE} dev br0" for ip in ips),
    ])  # fmt: skip
    world.node.wait_until_up("br0")


def face_bridge(leaf: NetworkNamespace) -> None:
    """Let a leaf send to the bridge's link address, from one of its own."""
    leaf.ip([
        f"link set dev eth0 address {THERE} arp on",
        *(f"neigh replace {ip} lladdr {HERE} dev eth0" for ip in (*NODE.values(), *CLUSTER_IP.values())),
    ])  # fmt: skip


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM], ids=["tcp", "udp"])
@pytest.mark.parametrize("policy", ["Cluster", "Local"])
@pytest.mark.parametrize("family", [4, 6])
def test_what_comes_in_by_a_port_and_its_bridge_is_translated_once(
    world: World, family: int, policy: str, kind: int
) -> None:
    """The same goes for bonds. Twice, and the endpoint sees the client where it should see the node."""
    world.sync(*objects(externalTrafficPolicy=policy), *slices())
    assert held(world, (INGRESS,)) == {"up0", "pod0"}
    face_bridge(world.client)
    make_bridge(world, "up0", CLIENT.values())
    upkeep(world)
    assert held(world, (INGRESS,)) == {"br0", "pod0"}
    assert held(world, (EGRESS,)) == {"lo", "br0", "up0", "pod0"}
    server = world.serve(world.pod, POD[family], 8080, kind)
    with world.client_socket(world.client, family, kind) as client:
        client.bind((CLIENT[family], 41000))
        client.connect((NODE[family], 30080))
        client.send(b"question")
        if kind == socket.SOCK_STREAM:
            accepted, peer = server.accept()
            with accepted:
                accepted.settimeout(WAIT)
                assert accepted.recv(16) == b"question"
                accepted.send(b"answer")
                assert client.recv(16) == b"answer"
        else:
            for _ in range(2):
                _word, peer = server.recvfrom(16)
                server.sendto(b"answer", peer)
                assert client.recv(16) == b"answer"
                client.send(b"question")
    assert peer[0] == (NODE if policy == "Cluster" else CLIENT)[family]
    assert (peer[1] == 41000) is (policy == "Local")

    world.node.ip(["link set dev up0 nomaster"])
    upkeep(world)
    assert held(world, (INGRESS,)) == {"br0", "up0", "pod0"}


@pytest.mark.parametrize("family", [4, 6])
def test_pods_on_a_bridge_are_told_by_it(world: World, family: int) -> None:
    """detectLocalMode BridgeInterface: who comes in by the bridge is a pod, and sees no masquerade at a cluster IP."""
    face_bridge(world.client)
    make_bridge(world, "up0", CLIENT.values())
    by_bridge = {"detectLocalMode": "BridgeInterface", "detectLocal": {"bridgeInterface": "br0"}}
    config = ProxyConfig.from_mapping({"nodeName": "n1", "nodeIPs": list(NODE.values()), **by_bridge})
    world.engine = Engine(config, world.backend)
    world.sync(*objects(), *slices())
    server = world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    with world.client_socket(world.client, family, socket.SOCK_STREAM) as client:
        client.connect((CLUSTER_IP[family], 80))
        accepted, peer = server.accept()
        accepted.close()
    assert peer[0] == CLIENT[family]
    # There and back, and nothing of a masquerade that was decided upon and then bypassed.
    assert len(world.backend.plane.read((f"flows{family}",))[f"flows{family}"]) == 2


@pytest.mark.parametrize("family", [4, 6])
def test_an_excluded_device_has_no_programs(either: World, family: int) -> None:
    world = either
    world.serve(world.pod, POD[family], 8080, socket.SOCK_STREAM)
    world.sync(*objects(), *slices())
    assert dial(world, family) == 0
    everywhere = held(world)
    assert everywhere == {"lo", "up0", "pod0"}

    assert restart(world, excluded=("up*",))
    assert held(world) == everywhere - {"up0"}
    with world.node.entered():
        assert world.backend.outsiders()["excludedDevices"] == ["up0"]
    # What comes by it is the node's own affair, and nothing there listens.
    assert dial(world, family) == errno.ECONNREFUSED
    assert not restart(world, excluded=("up*",))
    upkeep(world)
    assert held(world) == everywhere - {"up0"}

    assert restart(world)
    assert held(world) == everywhere
    assert dial(world, family) == 0
    assert not restart(world)


def test_what_is_excluded_follows_the_names_of_devices(either: World) -> None:
    world = either
    world.sync(*objects(), *slices())
    restart(world, excluded=("stor?", "wg*"))
    world.node.ip(["link add dev stor0 type veth peer name late0"])
    upkeep(world)
    assert held(world) == {"lo", "up0", "pod0", "late0"}
    world.node.ip(["link set dev stor0 name stor10", "link set dev late0 name wg-mesh"])
    upkeep(world)
    assert held(world) == {"lo", "up0", "pod0", "stor10"}
    world.node.ip(["link set dev stor10 name stor1", "link set dev wg-mesh name mesh"])
    upkeep(world)
    assert held(world) == {"lo", "up0", "pod0", "mesh"}


def test_an_excluded_device_has_no_xdp_program(world: World) -> None:
    world.sync(*objects(), *slices())
    assert restart(world, xdp="generic")
    with world.node.entered():
        up0 = socket.if_nametoindex("up0")
        assert program_on(up0)
    assert restart(world, xdp="generic", excluded=("up0",))
    with world.node.entered():
        assert not program_on(up0)
    assert not restart(world, xdp="generic", excluded=("up0",))


def test_a_device_that_came_while_nobody_looked_is_a_change(either: World) -> None:
    world = either
    world.sync(*objects(), *slices())
    assert not restart(world)
    world.node.ip(["link add dev late0 up type veth peer name late1"])
    assert restart(world)
    assert held(world) == {"lo", "up0", "pod0", "late0", "late1"}


def test_a_device_with_a_qdisc_of_somebody_else_is_told(either: World) -> None:
    """CNI plugins that limit bandwidth put one on the devices of pods; clsact cannot be had beside it, tcx can."""
    world = either
    tcx = world.backend.plane.packets.tcx
    server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)
    world.node.run(["tc", "qdisc", "add", "dev", "pod0", "ingress"])
    world.sync(*objects(), *slices())
    assert held(world) == {"lo", "up0", *(["pod0"] if tcx else [])}
    assert [text.split(":")[0] for text in world.backend.problems] == (
        [] if tcx else ["pod0 has a qdisc ingress, which keeps clsact away below Linux 6.6"]
    )
    # An endpoint behind it serves, and what it answers passes the program at ingress.
    assert dial(world) == 0
    server.accept()[0].close()
    assert not restart(world)

    world.node.run(["tc", "qdisc", "del", "dev", "pod0", "ingress"])
    upkeep(world)
    assert held(world) == {"lo", "up0", "pod0"}
    assert world.backend.problems == []
