"""Ethernet frames of both families, made with right checksums and byte for byte comparable."""

from __future__ import annotations

import ipaddress
import struct

ICMP, TCP, UDP, ICMP6, SCTP = 1, 6, 17, 58, 132
SYN, ACK, FIN, RST = 0x02, 0x10, 0x01, 0x04
_ETHERTYPES = {4: b"\x08\x00", 6: b"\x86\xdd"}
_FRAGMENT6 = 44


def packed(ip: str) -> bytes:
    """Return an address in network byte order."""
    return ipaddress.ip_address(ip).packed


def family_of(ip: str) -> int:
    """Return 4 or 6."""
    return ipaddress.ip_address(ip).version


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def pseudo(source: str, destination: str, protocol: int, length: int) -> bytes:
    """Return the pseudo header that a transport checksum covers."""
    tail = struct.pack("!BBH", 0, protocol, length) if family_of(source) == 4 else struct.pack("!II", length, protocol)
    return packed(source) + packed(destination) + tail


def summed(segment: bytes, at: int, source: str, destination: str, protocol: int) -> bytes:
    """Return a segment with its checksum filled in at an offset."""
    head = b"" if protocol == ICMP else pseudo(source, destination, protocol, len(segment))
    value = checksum(head + segment) or 0xFFFF
    return segment[:at] + struct.pack("!H", value) + segment[at + 2 :]


def ip(source: str, destination: str, protocol: int, payload: bytes, *, options: bytes = b"") -> bytes:
    """Return an IP packet. options: of IPv4, in whole words."""
    if family_of(source) == 6:
        header = struct.pack("!IHBB", 0x60000000, len(payload), protocol, 64)
        return header + packed(source) + packed(destination) + payload
    return _header4(source, destination, protocol, len(payload), 0, options) + payload


def _header4(source: str, destination: str, protocol: int, length: int, fragment: int, options: bytes = b"") -> bytes:
    size = 20 + len(options)
    header = struct.pack("!BBHHHBBH", 0x40 | size // 4, 0, size + length, 7, fragment, 64, protocol, 0)
    header += packed(source) + packed(destination) + options
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:]


def frame(packet: bytes, ends: tuple[bytes, bytes] = (bytes(6), bytes(6))) -> bytes:
    """Return an IP packet behind an Ethernet header. ends: its addresses, to and from."""
    return b"".join(ends) + _ETHERTYPES[packet[0] >> 4] + packet


def tcp(source: str, sport: int, destination: str, dport: int, flags: int = SYN, *, options: bytes = b"") -> bytes:
    """Return an IP packet with a TCP segment. options: of IPv4."""
    segment = struct.pack("!HHIIBBHHH", sport, dport, 1, 0, 0x50, flags, 1024, 0, 0) + b"data"
    return ip(source, destination, TCP, summed(segment, 16, source, destination, TCP), options=options)


def udp(source: str, sport: int, destination: str, dport: int, *, unsummed: bool = False) -> bytes:
    """Return an IP packet with a datagram. unsummed: without a checksum, as IPv4 allows."""
    datagram = struct.pack("!HHHH", sport, dport, 13, 0) + b"query"
    return ip(source, destination, UDP, datagram if unsummed else summed(datagram, 6, source, destination, UDP))


def sctp(source: str, sport: int, destination: str, dport: int, chunk: int) -> bytes:
    """Return an IP packet with an SCTP chunk of a type; nobody here looks at its CRC32c."""
    return ip(source, destination, SCTP, struct.pack("!HHIIBBH", sport, dport, 0, 0, chunk, 0, 4))


def echo(source: str, destination: str) -> bytes:
    """Return an ICMP echo request."""
    kind, protocol = (8, ICMP) if family_of(source) == 4 else (128, ICMP6)
    message = struct.pack("!BBHHH", kind, 0, 0, 1, 1) + b"ping"
    return ip(source, destination, protocol, summed(message, 2, source, destination, protocol))


def unreachable(source: str, destination: str, quoted: bytes) -> bytes:
    """Return the ICMP error "port unreachable" about a packet."""
    kind, code, protocol = (3, 3, ICMP) if family_of(source) == 4 else (1, 4, ICMP6)
    message = struct.pack("!BBHI", kind, code, 0, 0) + quoted
    return ip(source, destination, protocol, summed(message, 2, source, destination, protocol))


def refusal(about: bytes) -> bytes:
    """Return what a node answers to a packet that it refuses: the error in the name of the address that was dialled.

    The checksum field in the quote holds the one value that completing it, as hardware does, gives again.
    """
    six = about[0] >> 4 == 6
    header = (48 if about[6] == _FRAGMENT6 else 40) if six else (about[0] & 15) * 4
    protocol = about[40] if header == 48 else about[6] if six else about[9]
    size, field = {TCP: (20, 16), UDP: (8, 6), SCTP: (12, None)}.get(protocol, (8, None))
    segment = about[header : header + size]
    if field is not None:
        head, tail = segment[:field], segment[field + 2 :]
        # What is looked for is ~(rest + value), its own double is ~rest, and two has an inverse modulo 65535.
        value = checksum(head + b"\0\0" + tail) * pow(2, -1, 0xFFFF) % 0xFFFF
        segment = head + struct.pack("!H", value) + tail
        assert checksum(segment) == value
    at, width = (8, 16) if six else (12, 4)
    client, dialled = (str(ipaddress.ip_address(about[start : start + width])) for start in (at, at + width))
    made = unreachable(dialled, client, about[:header] + segment)
    if not six:
        outer = struct.pack("!BBHHHBBH", 0x45, 0xC0, len(made), 0, 0x4000, 64, ICMP, 0) + made[12:20]
        made = outer[:10] + struct.pack("!H", checksum(outer)) + outer[12:] + made[20:]
    return made


def fragments(packet: bytes, at: int) -> list[bytes]:
    """Return an IP packet in two fragments, split `at` bytes (a multiple of eight) behind its header."""
    if packet[0] >> 4 == 4:
        source, destination = (str(ipaddress.ip_address(packet[start : start + 4])) for start in (12, 16))
        body, protocol = packet[20:], packet[9]
        return [
            _header4(source, destination, protocol, len(part), flags) + part
            for part, flags in ((body[:at], 0x2000), (body[at:], at // 8))
        ]
    source, destination = (str(ipaddress.ip_address(packet[start : start + 16])) for start in (8, 24))
    body, protocol = packet[40:], packet[6]
    return [
        ip(source, destination, _FRAGMENT6, struct.pack("!BBHI", protocol, 0, offset, 77) + part)
        for part, offset in ((body[:at], 1), (body[at:], at))
    ]
