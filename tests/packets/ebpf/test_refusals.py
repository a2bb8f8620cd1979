"""Refused packets on real devices: clients learn it at once, and every byte of the error is right on whatever way back.

Whoever leaves checksums to hardware (veth, virtio) leaves them to the way back, too: it may finish them or not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Collection, Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import refusal_table
from devtools.bench.world import finish_checksums
from devtools.conformance.netns import NetworkNamespace
from tests.packets.ebpf import frames
from tests.packets.ebpf.error_capture import Capture, Seen
from tests.packets.ebpf.one_node import CLIENT, CLUSTER_IP, INET, NODE, POD, WAIT, World, objects, slices

_UDP_SEGMENT = 103
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x2, 0x1000, 0x4000
_TUN_F_CSUM = 1
_NEEDS_CSUM = 1
#: struct virtio_net_hdr: flags, segmentation, bytes of headers and of a segment, start and field of the checksum.
_VNET = struct.Struct("=BBHHHH")
_HERE, _SENDER = bytes.fromhex("02000000007a"), bytes.fromhex("020000000009")


@contextlib.contextmanager
def without_endpoints() -> Iterator[World]:
    made = World()
    try:
        made.sync(*objects(), *slices({}))
        yield made
    finally:
        made.close()


@pytest.fixture
def world() -> Iterator[World]:
    with without_endpoints() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    with without_endpoints() as made:
        yield made


def nothing(_world: World) -> None:
    """Both ends of every veth leave checksums to the other."""


def by_the_sender(world: World) -> None:
    for leaf in (world.client, world.pod):
        finish_checksums(leaf, "eth0")


def on_the_way_back(world: World) -> None:
    for device in ("up0", "pod0"):
        finish_checksums(world.node, device)


WAYS = [
    # who finishes the checksum, whether the question's and the answer's are unfinished where the client sees them
    pytest.param(nothing, True, True, id="nobody"),
    pytest.param(by_the_sender, False, False, id="sender"),
    pytest.param(on_the_way_back, True, False, id="way-back"),
]


def places(world: World, family: int) -> list[tuple[NetworkNamespace, tuple[str, int]]]:
    """Return who dials what: an outsider, and a pod."""
    return [
        (world.client, (NODE[family], 30080)),
        (world.client, (CLUSTER_IP[family], 80)),
        (world.pod, (CLUSTER_IP[family], 80)),
        (world.pod, (CLUSTER_IP[family], 81)),
    ]


@pytest.mark.parametrize(("finish", "asked_unfinished", "answered_unfinished"), WAYS)
def test_datagrams_are_refused_at_once(
    world: World, finish: Callable[[World], None], asked_unfinished: bool, answered_unfinished: bool
) -> None:
    finish(world)
    for family in (4, 6):
        for leaf, to in places(world, family):
            with Capture(leaf) as capture, world.client_socket(leaf, family, socket.SOCK_DGRAM) as client:
                client.connect(to)
                client.send(b"question")
                with pytest.raises(ConnectionRefusedError):
                    client.recv(16)
                error = capture.error()
                (asked,) = capture.sent
                assert error.packet == frames.refusal(asked.packet)
                assert (asked.unfinished, error.unfinished) == (asked_unfinished, answered_unfinished)


@pytest.mark.parametrize(("finish", "asked_unfinished", "answered_unfinished"), WAYS[2:])
def test_connections_are_refused(
    world: World, finish: Callable[[World], None], asked_unfinished: bool, answered_unfinished: bool
) -> None:
    """The error to a first SYN comes while connect() holds its socket, which then waits for the second one's."""
    finish(world)
    with contextlib.ExitStack() as undo:
        waiting = []
        for family in (4, 6):
            for leaf, to in places(world, family):
                capture = undo.enter_context(Capture(leaf))
                client = undo.enter_context(world.client_socket(leaf, family, socket.SOCK_STREAM))
                client.setblocking(False)
                assert client.connect_ex(to) == errno.EINPROGRESS
                error = capture.error()
                asked = capture.sent[0]
                assert error.packet == frames.refusal(asked.packet)
                assert (asked.unfinished, error.unfinished) == (asked_unfinished, answered_unfinished)
                waiting.append(client)
        for client in waiting:
            assert select.select([], [client], [], WAIT)[1]
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


@pytest.mark.parametrize("family", [4, 6])
def test_pings_are_refused(shared: World, family: int) -> None:
    with Capture(shared.client) as capture, shared.client.entered():
        protocol = socket.IPPROTO_ICMP if family == 4 else socket.IPPROTO_ICMPV6
        with socket.socket(INET[family], socket.SOCK_RAW, protocol) as client:
            echo = frames.echo(CLIENT[family], CLUSTER_IP[family])
            client.sendto(echo[20 if family == 4 else 40 :], (CLUSTER_IP[family], 0))
        assert capture.error().packet == frames.refusal(capture.sent[0].packet)


def as_fragments(client: socket.socket) -> None:
    client.send(bytes(4000))


def as_a_train(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_UDP, _UDP_SEGMENT, 1000)
    client.send(bytes(5500))


def with_options(client: socket.socket) -> None:
    if client.family == socket.AF_INET:
        client.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, b"\x07\x07\x04\0\0\0\0\0")
    client.send(b"question")


@pytest.mark.parametrize("send", [as_fragments, as_a_train, with_options])
@pytest.mark.parametrize("family", [4, 6])
def test_one_answer_however_it_is_sent(shared: World, family: int, send: Callable[[socket.socket], None]) -> None:
    with Capture(shared.client) as capture, shared.client_socket(shared.client, family, socket.SOCK_DGRAM) as client:
        client.connect((NODE[family], 30080))
        send(client)
        with pytest.raises(ConnectionRefusedError):
            client.recv(16)
        capture.drain()
        (error,) = capture.errors
        assert error.packet == frames.refusal(capture.sent[0].packet)


@pytest.mark.parametrize("family", [4, 6])
def test_behind_a_bridge_the_bridge_answers(world: World, family: int) -> None:
    """At the bridge's port the packet is to another host; there is no telling which."""
    guest, bridge, gateway = NetworkNamespace(), "02:00:00:00:00:b0", {4: "169.254.1.1", 6: "fe80::1"}[family]
    address = {4: "10.244.1.77/32", 6: "fd00:10:244:1::77/128"}[family]
    try:
        world.node.ip(
            [
                f"link add dev br0 address {bridge} up type bridge",
                f"link add dev port0 up master br0 type veth peer name eth0 netns {guest.path}",
            ]
        )
        guest.ip(
            [
                "link set eth0 up",
                f"addr add {address} dev eth0" + (" nodad" if family == 6 else ""),
                f"neigh add {gateway} lladdr {bridge} dev eth0",
                f"route add {CLUSTER_IP[family]} via {gateway} dev eth0 onlink",
            ]
        )
        world.node.wait_until_up("port0", "br0")
        with world.node.entered():
            world.backend.upkeep()
        with Capture(guest) as capture, world.client_socket(guest, family, socket.SOCK_DGRAM) as client:
            client.connect((CLUSTER_IP[family], 80))
            client.send(b"question")
            with pytest.raises(ConnectionRefusedError):
                client.recv(16)
            assert capture.error().packet in {frames.refusal(seen.packet) for seen in capture.sent}
        assert world.backend.plane.reasons()["no-endpoint"] == 1
    finally:
        guest.close()


#: Tags: a VLAN, and a priority without one.
VLAN, PRIORITY = 7, 7 << 13


class Tunnel:
    """A device of the node whose other end is this test: a tap has Ethernet frames, a tun bare IP packets.

    tag: of the frames, as a VLAN or a priority has. finishes: the device finishes checksums before it hands them out.
    """

    def __init__(self, world: World, kind: str, finishes: bool, tag: int | None = None) -> None:
        self._framed = kind == "tap"
        self.tag = tag
        flags = (_IFF_TAP if self._framed else _IFF_TUN) | _IFF_NO_PI | _IFF_VNET_HDR
        with world.node.entered():
            self._file = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(self._file, _TUNSETIFF, struct.pack("16sH22x", kind.encode(), flags))
            fcntl.ioctl(self._file, _TUNSETOFFLOAD, 0 if finishes else _TUN_F_CSUM)
        address = f"address {_HERE.hex(':')}" if self._framed else ""
        world.node.ip([f"link set {kind} {address} addrgenmode none up"])
        with world.node.entered():
            world.backend.upkeep()

    def __enter__(self) -> Tunnel:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _frame(self, packet: bytes, to: bytes, sender: bytes) -> bytes:
        if not self._framed:
            return packet
        framed = frames.frame(packet, (to, sender))
        return framed[:12] + (b"" if self.tag is None else struct.pack("!HH", 0x8100, self.tag)) + framed[12:]

    def send(self, packet: bytes, checksum: tuple[int, int] | None) -> None:
        """Send a packet. checksum: start of the part whose checksum is left to the receiver, and its field in that."""
        framed = self._frame(packet, _HERE, _SENDER)
        start, field = checksum or (0, 0)
        header = _VNET.pack(_NEEDS_CSUM if checksum else 0, 0, 0, 0, len(framed) - len(packet) + start, field)
        os.write(self._file, header + framed)

    def error(self) -> tuple[bytes, bool]:
        """Return the next error that comes out, and whether its checksum is unfinished. Raises TimeoutError."""
        link = len(self._frame(b"\x45", _HERE, _SENDER)) - 1
        while select.select([self._file], [], [], WAIT)[0]:
            data = os.read(self._file, 2048)
            seen = Seen(data[_VNET.size + link :], bool(data[0] & _NEEDS_CSUM))
            # Others: what IPv6 says to a new link.
            if seen.is_error:
                assert data[_VNET.size :] == self._frame(seen.packet, _SENDER, _HERE)
                return seen
        raise TimeoutError("no error came")

    def ask(self, packet: bytes, checksum: tuple[int, int] | None = None) -> tuple[bytes, bool]:
        """Send a packet and return the error about it."""
        self.send(packet, checksum)
        return self.error()


def unfinished(packet: bytes, start: int, field: int, source: str, destination: str, protocol: int) -> bytes:
    """Return a packet as a sender leaves it to hardware: the checksum's field has the pseudo header's sum."""
    at = start + field
    begun = ~frames.checksum(frames.pseudo(source, destination, protocol, len(packet) - start)) & 0xFFFF
    return packet[:at] + struct.pack("!H", begun) + packet[at + 2 :]


@pytest.mark.parametrize("finishes", [False, True], ids=["left", "finished"])
@pytest.mark.parametrize(
    ("kind", "tag"), [("tap", None), ("tap", PRIORITY), ("tun", None)], ids=["tap", "priority", "tun"]
)
def test_every_byte_is_right_whoever_finishes_checksums(
    shared: World, kind: str, tag: int | None, finishes: bool
) -> None:
    with Tunnel(shared, kind, finishes, tag) as device:
        for family, source in ((4, POD[4]), (6, POD[6])):
            to, header = CLUSTER_IP[family], 20 if family == 4 else 40
            for protocol, field in ((frames.TCP, 16), (frames.UDP, 6)):
                plain = (frames.tcp if protocol == frames.TCP else frames.udp)(source, 40000, to, 80)
                assert device.ask(plain) == (frames.refusal(plain), False)
                left = unfinished(plain, header, field, source, to, protocol)
                assert device.ask(left, (header, field)) == (frames.refusal(left), not finishes)
            options = b"\x01" * 40
            if family == 4:
                made = frames.ip(source, to, frames.UDP, frames.udp(source, 1, to, 80)[20:], options=options)
                left = unfinished(made, 60, 6, source, to, frames.UDP)
                assert device.ask(left, (60, 6)) == (frames.refusal(left), not finishes)


def test_a_vlan_is_left_to_its_own_device(shared: World) -> None:
    """Its packets come in once more, by that; what was decided before would be decided twice."""
    plane = shared.backend.plane
    before, held = plane.reasons(), plane.read(("flows4", "flows6"))
    with Tunnel(shared, "tap", False, VLAN) as device:
        for family in (4, 6):
            client, node, served = CLIENT[family], NODE[family], CLUSTER_IP[family]
            for made in (frames.tcp, frames.udp):
                device.send(made(client, 41000, served, 80), None)
                device.send(made(client, 41000, served, 81), None)
                device.send(made(client, 41000, node, 30080), None)
        device.tag = None
        plain = frames.udp(POD[4], 40000, CLUSTER_IP[4], 80)
        assert device.ask(plain) == (frames.refusal(plain), False)
    after = plane.reasons()
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {"no-endpoint": 1}
    assert plane.read(("flows4", "flows6")) == held


def test_a_checksum_deep_in_the_packet_gets_no_answer(shared: World) -> None:
    """The inner checksum of somebody's tunnel is left to hardware: this cannot be cut, and nothing malformed leaves."""
    reasons = shared.backend.plane.reasons
    before = reasons()["malformed"]
    with Tunnel(shared, "tap", False) as device:
        inner = frames.tcp("192.0.2.201", 1, "192.0.2.202", 80)
        datagram = struct.pack("!HHHH", 40000, 80, 8 + len(inner), 0) + inner
        packet = frames.ip(POD[4], CLUSTER_IP[4], frames.UDP, datagram)
        device.send(packet, (20 + 8 + 20, 16))
        next_one = frames.udp(POD[4], 40001, CLUSTER_IP[4], 80)
        assert device.ask(next_one) == (frames.refusal(next_one), False)
    assert reasons()["malformed"] == before + 1


def test_filters_of_clsact_answer_too() -> None:
    made = World()
    try:
        made.backend.plane.packets.tcx = False
        made.sync(*objects(), *slices({}))
        with made.client_socket(made.client, 4, socket.SOCK_DGRAM) as client:
            client.connect((NODE[4], 30080))
            client.send(b"question")
            with pytest.raises(ConnectionRefusedError):
                client.recv(16)
    finally:
        made.close()


def tables_of_an_earlier_version(world: World) -> None:
    chain = "{ type filter hook forward priority filter; policy accept; }"
    for family in ("ip", "ip6"):
        world.node.run(["nft", f"add chain {family} kproxy-refuse filter-forward {chain}"])


def assert_no_forwarded_packet_meets_them(world: World) -> None:
    listed = world.node.run(["nft", "list ruleset"])
    assert "hook forward" not in listed
    assert listed.count("hook output") == 2
    for address in CLUSTER_IP.values():
        assert address in listed


def test_tables_of_an_earlier_version_go_behind_its_programs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until no program of that version is left, somebody has to reject what it marks."""
    tables_of_an_earlier_version(world)
    hooks = world.backend.plane.attached()
    monkeypatch.setattr(layout, "SCHEMA", layout.SCHEMA + 1)
    later = EbpfBackend(options=world.backend.options)
    loads = []

    def load(cluster_ips: Collection[bytes]) -> str:
        loads.append((sorted(later.plane.attached()), later.plane.former()))
        return load_tables(cluster_ips)

    load_tables = refusal_table.load
    monkeypatch.setattr(refusal_table, "load", load)
    with world.node.entered():
        engine = Engine(world.engine.config, later)
        engine.apply([*objects(), *slices({})])
        engine.sync()
    try:
        assert loads == [(sorted(hooks), {})]
        assert_no_forwarded_packet_meets_them(world)
    finally:
        with world.node.entered():
            later.remove()
        later.close()


def test_tables_of_an_earlier_version_do_not_stay(world: World) -> None:
    """Killed between the programs and the tables."""
    tables_of_an_earlier_version(world)
    with world.node.entered():
        world.backend.upkeep()
    assert_no_forwarded_packet_meets_them(world)
