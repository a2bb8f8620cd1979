"""The programs by themselves: through the verifier within their budget, and one packet at a time."""

from __future__ import annotations

import ipaddress
import os
import struct
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flows, layout, object_file, programs
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import TABLES
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.programs import sock, tc, xdp
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet, load_programs

#: Instructions the verifier may walk, by the kind of program. The kernel's limit is a million; growth is to be seen.
BUDGETS = {"cgroup": 6000, "tcx": 200000, "xdp": 40000}
VARIANTS = [
    pytest.param("sock", {"has_set_retval": 1}, id="sock"),
    pytest.param("sock", {"has_set_retval": 0}, id="sock-without-set-retval"),
    pytest.param("tc", {"link_header": 14}, id="tc-ethernet"),
    pytest.param("tc", {"link_header": 0}, id="tc-no-link-header"),
    pytest.param("tc", {"has_check_mtu": 0}, id="tc-without-check-mtu"),
    pytest.param("xdp", {"native": 0}, id="xdp-generic"),
    pytest.param("xdp", {"native": 1}, id="xdp-native"),
    pytest.param("xdp", {"native": 1, "table_size": 131071}, id="xdp-maglev"),
    pytest.param("sock", {"table_size": 131071}, id="sock-maglev"),
    pytest.param("sock", {"table_size": 251, "has_set_retval": 0}, id="sock-maglev-without-set-retval"),
    pytest.param("tc", {"table_size": 131071}, id="tc-maglev"),
    pytest.param("tc", {"table_size": 251, "link_header": 0}, id="tc-maglev-no-link-header"),
]
OBJECTS = {
    name: object_file.parse(programs.unpack(module.OBJECT))
    for name, module in (("sock", sock), ("tc", tc), ("xdp", xdp))
}

CLIENT, VIP, POD, NODE = (
    ipaddress.ip_address(ip).packed for ip in ("198.51.100.9", "10.96.0.1", "10.244.1.5", "192.0.2.11")
)
UNSPEC, SHOT = 0xFFFFFFFF, 2


@pytest.mark.parametrize(("name", "constants"), VARIANTS)
def test_the_verifier_accepts_within_the_budget(name: str, constants: dict[str, int]) -> None:
    maps = MapSet(None)
    try:
        size = layout.table_value_size(constants.get("table_size", 0))
        maps.ensure(OBJECTS[name].maps, {}, dict.fromkeys(TABLES, size))
        loaded = load_programs(OBJECTS[name], maps, constants)
        assert len(loaded) == len(OBJECTS[name].programs)
        for section, descriptor in loaded.items():
            walked = bpf.program_info(descriptor).verified
            os.close(descriptor)
            assert 0 < walked <= BUDGETS[section.partition("/")[0]], section
    finally:
        maps.close()


class Programs:
    """The packet programs with maps of their own, attached to nothing."""

    def __init__(self) -> None:
        self.maps = MapSet(None)
        self.maps.ensure(OBJECTS["tc"].maps, {})
        self.loaded = load_programs(OBJECTS["tc"], self.maps, {})
        self.maps["settings"].put(bytes(4), layout.Settings(1, 0, 2, NODE, bytes(16)).pack())
        self.maps["slots4"].put(layout.slot_key(2, 0), layout.endpoint(POD, 8080))
        self.maps["cluster_ips4"].put(VIP, b"\1\0\0\0")

    def frontend(self, answer: int, flags: int = 0) -> None:
        value = layout.FrontendValue(1, 1, 0, 0, (answer, answer, answer), flags)
        self.maps["frontends4"].put(layout.frontend_key(4, VIP, 6, 80), value.pack(4))

    def ingress(self, packet: bytes) -> bpf.RunResult:
        return bpf.run_once(self.loaded["tcx/ingress"], packet, b"")

    def egress(self, packet: bytes) -> bpf.RunResult:
        return bpf.run_once(self.loaded["tcx/egress"], packet, b"")

    def close(self) -> None:
        for descriptor in self.loaded.values():
            os.close(descriptor)
        self.maps.close()


@pytest.fixture
def loaded() -> Iterator[Programs]:
    made = Programs()
    try:
        yield made
    finally:
        made.close()


def checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(~total & 0xFFFF)


def tcp4(source: bytes, destination: bytes, sport: int, dport: int, flags: int = 2) -> bytes:
    """Return an Ethernet frame with a TCP packet whose checksums are right."""
    segment = struct.pack("!HHIIBBHHH", sport, dport, 1, 0, 0x50, flags, 1024, 0, 0)
    pseudo = source + destination + struct.pack("!BBH", 0, 6, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 7, 0, 64, 6, 0) + source + destination
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return bytes(12) + b"\x08\x00" + header + segment


def tuple_of(frame: bytes) -> tuple[bytes, bytes, int, int]:
    """Return addresses and ports, after checking both checksums."""
    header, segment = frame[14:34], frame[34:]
    assert checksum(header) == 0
    assert checksum(header[12:20] + struct.pack("!BBH", 0, 6, len(segment)) + segment) == 0
    return (header[12:16], header[16:20], *struct.unpack_from("!HH", segment))


def test_a_packet_of_others_passes_unchanged(loaded: Programs) -> None:
    packet = tcp4(CLIENT, POD, 40000, 8080)
    assert loaded.ingress(packet) == (UNSPEC, packet)
    assert loaded.egress(packet) == (UNSPEC, packet)


def test_a_life_without_masquerade(loaded: Programs) -> None:
    loaded.frontend(0)
    verdict, packet = loaded.ingress(tcp4(CLIENT, VIP, 40000, 80))
    assert (verdict, tuple_of(packet)) == (UNSPEC, (CLIENT, POD, 40000, 8080))
    assert tuple_of(loaded.egress(packet).packet) == (CLIENT, POD, 40000, 8080)
    assert tuple_of(loaded.egress(tcp4(POD, CLIENT, 8080, 40000, 0x12)).packet) == (VIP, CLIENT, 80, 40000)


def test_a_life_with_masquerade(loaded: Programs) -> None:
    loaded.frontend(layout.MASQUERADE)
    packet = loaded.ingress(tcp4(CLIENT, VIP, 40000, 80)).packet
    assert tuple_of(packet) == (CLIENT, POD, 40000, 8080)
    source, destination, port, endpoint_port = tuple_of(loaded.egress(packet).packet)
    assert (source, destination, endpoint_port) == (NODE, POD, 8080)
    assert flows.SOURCE_PORTS[0] <= port <= flows.SOURCE_PORTS[1]
    packet = loaded.ingress(tcp4(POD, NODE, 8080, port, 0x12)).packet
    assert tuple_of(packet) == (POD, CLIENT, 8080, 40000)
    assert tuple_of(loaded.egress(packet).packet) == (VIP, CLIENT, 80, 40000)


def test_a_second_frontend_of_the_same_client_port_gets_another_port(loaded: Programs) -> None:
    other = ipaddress.ip_address("10.96.0.2").packed
    loaded.frontend(0)
    value = layout.FrontendValue(1, 1, 0, 0, (0, 0, 0), 0).pack(4)
    loaded.maps["frontends4"].put(layout.frontend_key(4, other, 6, 80), value)
    first = tuple_of(loaded.ingress(tcp4(CLIENT, VIP, 40000, 80)).packet)
    second = tuple_of(loaded.ingress(tcp4(CLIENT, other, 40000, 80)).packet)
    assert first[2] == 40000
    assert second[2] != 40000
    answer = loaded.egress(tcp4(POD, CLIENT, 8080, second[2], 0x12)).packet
    assert tuple_of(answer) == (other, CLIENT, 80, 40000)


def test_a_direct_connection_is_not_taken_for_an_ended_one(loaded: Programs) -> None:
    loaded.frontend(layout.MASQUERADE)
    packet = loaded.egress(loaded.ingress(tcp4(CLIENT, VIP, 40000, 80)).packet).packet
    port = tuple_of(packet)[2]
    # The client ends, then the endpoint: every entry on both ways has seen it.
    loaded.egress(loaded.ingress(tcp4(CLIENT, VIP, 40000, 80, 0x11)).packet)
    loaded.egress(loaded.ingress(tcp4(POD, NODE, 8080, port, 0x11)).packet)
    direct = tcp4(CLIENT, POD, 40000, 8080)
    assert loaded.ingress(direct).packet == direct
    assert loaded.egress(direct).packet == direct
    answer = tcp4(POD, CLIENT, 8080, 40000, 0x12)
    assert loaded.egress(answer).packet == answer


def test_a_direct_connection_beside_a_live_one_gets_another_port(loaded: Programs) -> None:
    loaded.frontend(0)
    loaded.ingress(tcp4(CLIENT, VIP, 40000, 80))
    packet = loaded.ingress(tcp4(CLIENT, POD, 40000, 8080)).packet
    source, destination, port, endpoint_port = tuple_of(packet)
    assert (source, destination, endpoint_port) == (CLIENT, POD, 8080)
    assert port != 40000
    assert tuple_of(loaded.egress(tcp4(POD, CLIENT, 8080, port, 0x12)).packet) == (POD, CLIENT, 8080, 40000)
    assert tuple_of(loaded.egress(tcp4(POD, CLIENT, 8080, 40000, 0x12)).packet) == (VIP, CLIENT, 80, 40000)


ENDED = [
    # what the endpoint's answer to somebody else's connection looks like, and at which hook an ended flow would take it
    pytest.param("egress", CLIENT, id="to-the-client"),
    pytest.param("ingress", NODE, id="to-a-masquerading-port"),
]


@pytest.mark.parametrize(("hook", "to"), ENDED)
@pytest.mark.parametrize("flags", [0, layout.DRAINING], ids=["serving", "draining"])
def test_an_ended_flow_takes_no_answer_of_another_connection(
    loaded: Programs, hook: str, to: bytes, flags: int
) -> None:
    loaded.frontend(layout.MASQUERADE)
    port = tuple_of(loaded.egress(loaded.ingress(tcp4(CLIENT, VIP, 40000, 80)).packet).packet)[2]
    for packet in (tcp4(POD, NODE, 8080, port, 0x11), tcp4(POD, CLIENT, 8080, 40000, 0x11)):
        loaded.egress(loaded.ingress(packet).packet)
    loaded.maps["settings"].put(bytes(4), layout.Settings(1, flags, 2, NODE, bytes(16)).pack())
    run = loaded.egress if hook == "egress" else loaded.ingress
    # SYN and ACK, then data: neither is of the connection that has ended.
    for tcp_flags in (0x12, 0x18):
        answer = tcp4(POD, to, 8080, port if to == NODE else 40000, tcp_flags)
        assert run(answer) == (UNSPEC, answer)


def test_draining_takes_no_new_connection_and_keeps_direct_ones_apart(loaded: Programs) -> None:
    loaded.frontend(0)
    loaded.ingress(tcp4(CLIENT, VIP, 40000, 80))
    loaded.maps["settings"].put(bytes(4), layout.Settings(1, layout.DRAINING, 2, NODE, bytes(16)).pack())
    new = tcp4(CLIENT, VIP, 40001, 80)
    assert loaded.ingress(new) == (UNSPEC, new)
    live = tcp4(CLIENT, VIP, 40000, 80, 0x10)
    assert tuple_of(loaded.ingress(live).packet) == (CLIENT, POD, 40000, 8080)
    assert tuple_of(loaded.ingress(tcp4(CLIENT, POD, 40000, 8080)).packet)[2] != 40000


def test_a_pod_gets_a_source_port_that_its_own_sockets_never_use(loaded: Programs) -> None:
    loaded.frontend(0)
    loaded.maps["pod_cidrs4"].put(layout.prefix_key(32, CLIENT), b"\1\0\0\0")
    source, destination, port, endpoint_port = tuple_of(loaded.ingress(tcp4(CLIENT, VIP, 40000, 80)).packet)
    assert (source, destination, endpoint_port) == (CLIENT, POD, 8080)
    assert flows.SOURCE_PORTS[0] <= port <= flows.SOURCE_PORTS[1]
    # The same pod's socket, led to the same endpoint from the same port without a translation here.
    direct = tcp4(CLIENT, POD, 40000, 8080)
    assert loaded.ingress(direct) == (UNSPEC, direct)
    answer = tcp4(POD, CLIENT, 8080, 40000, 0x12)
    assert loaded.egress(answer) == (UNSPEC, answer)
    assert tuple_of(loaded.egress(tcp4(POD, CLIENT, 8080, port, 0x12)).packet) == (VIP, CLIENT, 80, 40000)


VERDICTS = [
    pytest.param(layout.DROP, 0, 80, SHOT, "no-local-endpoint", id="drop"),
    pytest.param(layout.DNAT, layout.FRONTEND_RANGES, 80, SHOT, "source-range", id="source-range"),
]


@pytest.mark.parametrize(("answer", "flags", "port", "verdict", "reason"), VERDICTS)
def test_verdicts_are_counted(loaded: Programs, answer: int, flags: int, port: int, verdict: int, reason: str) -> None:
    loaded.frontend(answer, flags)
    packet = tcp4(CLIENT, VIP, 40000, port)
    assert loaded.ingress(packet) == (verdict, packet)
    index = layout.REASONS.index(reason).to_bytes(4, "little")
    held = bpf.map_lookup(loaded.maps["reasons"].fd, index, 8 * 256)
    assert held is not None
    assert sum(struct.unpack("=256Q", held)) == 1


def test_the_end_of_a_connection_is_marked(loaded: Programs) -> None:
    loaded.frontend(0)
    loaded.ingress(tcp4(CLIENT, VIP, 40000, 80))
    loaded.ingress(tcp4(CLIENT, VIP, 40000, 80, 0x11))
    held = [flows.unpack_flow(key, value) for key, value in loaded.maps["flows4"].dump().items()]
    assert [flow.flags for flow in held if flow.hook == flows.INGRESS] == [flows.FORWARD | flows.CLOSING]
