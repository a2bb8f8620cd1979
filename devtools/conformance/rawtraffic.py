"""What ordinary sockets cannot do: ICMP echoes, SCTP without SCTP in the kernel, packets nobody answers.

SCTP: an INIT chunk with a valid checksum is enough to open a connection for NAT and filters. A packet is recognised by
its initiate tag, since translation may change addresses and ports (RFC 9260, section 3.3.2).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import socket
import struct
from collections.abc import Callable
from typing import NamedTuple

from devtools.conformance.corpus import SocketAddress, canonical, family
from devtools.conformance.netns import NetworkNamespace

_INIT_CHUNK = 1
_ETH_P_IP, _ETH_P_IPV6 = 0x0800, 0x86DD
_PROTOCOLS = {6: "TCP", 17: "UDP", 132: "SCTP"}
# One after the other: a port used again within ten seconds belongs to the flow that the kernel remembers.
_SOURCE_PORTS = itertools.cycle(range(32768, 60999))


def _crc32c_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 9260, appendix A)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC32C[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def sctp_init(source_port: int, port: int, tag: int) -> bytes:
    chunk = struct.pack("!BBHIIHHI", _INIT_CHUNK, 0, 20, tag, 65536, 1, 1, tag)
    unsigned = struct.pack("!HHII", source_port, port, 0, 0) + chunk
    return unsigned[:8] + struct.pack("<I", crc32c(unsigned)) + unsigned[12:]


def _raw(namespace: NetworkNamespace, ip: str, protocol: int) -> socket.socket:
    with namespace.entered():
        sock = socket.socket(socket.AF_INET6 if family(ip) == 6 else socket.AF_INET, socket.SOCK_RAW, protocol)
    sock.setblocking(False)
    sock.bind((ip, 0))
    return sock


class SeenInit(NamedTuple):
    server: SocketAddress
    source: tuple[str, int]


class SctpListener:
    """Notes the INITs that reach the listening ports of one address."""

    def __init__(self, namespace: NetworkNamespace, ip: str) -> None:
        self.socket = _raw(namespace, ip, socket.IPPROTO_SCTP)
        self.ports: set[int] = set()
        self.seen: dict[int, SeenInit] = {}
        self._ip = ip

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    packet, peer = self.socket.recvfrom(2048)
                except ConnectionError:
                    continue
                if family(self._ip) == 4:
                    packet = packet[(packet[0] & 15) * 4 :]
                source_port, port, _, _, chunk, _, _, tag = struct.unpack("!HHIIBBHI", packet[:20])
                if chunk == _INIT_CHUNK and port in self.ports:
                    self.seen[tag] = SeenInit(SocketAddress(self._ip, port), (canonical(peer[0]), source_port))


class SctpInit:
    """One INIT; the listeners see it, this end sees a rejection."""

    def __init__(self, namespace: NetworkNamespace, client_ip: str, ip: str, port: int) -> None:
        self.socket = _raw(namespace, client_ip, socket.IPPROTO_SCTP)
        self.socket.connect((ip, 0))
        self.tag = random.randrange(1, 1 << 32)
        self.source = (client_ip, next(_SOURCE_PORTS))
        self.error = 0
        self._port = port

    def send(self) -> None:
        self.error = _send(self.socket, sctp_init(self.source[1], self._port, self.tag))

    def receive(self) -> None:
        try:
            self.socket.recv(2048)
        except BlockingIOError:
            pass
        except OSError as error:
            self.error = error.errno or 0


class IcmpEcho:
    """One ping."""

    def __init__(self, namespace: NetworkNamespace, client_ip: str, ip: str) -> None:
        self._v6 = family(ip) == 6
        self.socket = _raw(namespace, client_ip, socket.IPPROTO_ICMPV6 if self._v6 else socket.IPPROTO_ICMP)
        self.socket.connect((ip, 0))
        self.answered = False
        self.error = 0
        self._payload = random.randbytes(16)

    def send(self) -> None:
        header = struct.pack("!BBHHH", 128 if self._v6 else 8, 0, 0, random.randrange(65536), 1)
        message = header + self._payload
        if not self._v6:
            # The kernel fills in the checksum of ICMPv6 only.
            message = message[:2] + struct.pack("!H", _internet_checksum(message)) + message[4:]
        self.error = _send(self.socket, message)

    def receive(self) -> None:
        try:
            packet = self.socket.recv(2048)
        except BlockingIOError:
            return
        except OSError as error:
            self.error = error.errno or 0
            return
        message = packet if self._v6 else packet[(packet[0] & 15) * 4 :]
        if message[0] == (129 if self._v6 else 0) and message[8:] == self._payload:
            self.answered = True


def _send(sock: socket.socket, message: bytes) -> int:
    """Send, and return the error that the client saw; what is filtered on its way out shows in the receive only.

    A packet filter's verdict comes back as EPERM, that of a packet program on the device as ENOBUFS.
    """
    try:
        sock.send(message)
    except OSError as error:
        return 0 if error.errno in (errno.EPERM, errno.ENOBUFS) else error.errno or 0
    return 0


def _internet_checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


class Capture:
    """Packets that come back to a client from its own address, seen on its interface."""

    def __init__(self, namespace: NetworkNamespace, client_ip: str, endpoints: frozenset[SocketAddress]) -> None:
        self._v6 = family(client_ip) == 6
        with namespace.entered():
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(("eth0", _ETH_P_IPV6 if self._v6 else _ETH_P_IP))
        self.client_ip = client_ip
        self.waiting: dict[tuple[str, int], Callable[[SocketAddress], None]] = {}
        """What to call, by protocol and source port."""
        self._endpoints = endpoints

    def receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, origin = self.socket.recvfrom(2048)
                if origin[2] == socket.PACKET_OUTGOING:
                    continue
                seen = self._parse(packet)
                if seen is None:
                    continue
                protocol, source, to = seen
                wanted = self.waiting.get((protocol, source.port))
                if wanted is not None and source.ip == self.client_ip and to in self._endpoints:
                    wanted(to)

    def _parse(self, packet: bytes) -> tuple[str, SocketAddress, SocketAddress] | None:
        if self._v6:
            protocol, source, to, payload = packet[6], packet[8:24], packet[24:40], packet[40:]
            kind = socket.AF_INET6
        else:
            protocol, source, to, payload = packet[9], packet[12:16], packet[16:20], packet[(packet[0] & 15) * 4 :]
            kind = socket.AF_INET
        if protocol not in _PROTOCOLS or len(payload) < 4:
            return None
        source_port, port = struct.unpack("!HH", payload[:4])
        return (
            _PROTOCOLS[protocol],
            SocketAddress(socket.inet_ntop(kind, source), source_port),
            SocketAddress(socket.inet_ntop(kind, to), port),
        )
