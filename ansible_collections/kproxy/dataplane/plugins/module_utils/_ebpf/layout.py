# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Keys and values of the maps, byte for byte as src/layout.h and src/*_family.h declare them.

Numbers of our own are in host order (little-endian on every supported machine), addresses and ports in network order.
Raise SCHEMA with every change: pins live in a directory named after it, so maps of two layouts never meet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flow_filter, served_blocks

SCHEMA = 2

#: Maps that the programs fill, and the schema since which their layout is what it is: from there on they are taken over
#: by the programs of another version, so that connections outlive an upgrade.
#: The filter goes wherever flows go: programs of two versions that share flows must share it, or none of them asks it.
LEARNED_SINCE = {
    "affinity4": 1,
    "affinity6": 1,
    "connected4": 2,
    "connected6": 2,
    "flow_filter": 2,
    "flows4": 1,
    "flows6": 1,
    "sockets4": 1,
    "sockets6": 1,
}

#: The schema since which frontends4/6 have the keys that they have, and values that begin with a service port's number:
#: what was learned names service ports by those numbers.
NUMBERED_SINCE = 1

#: Where everything is pinned, unless told otherwise: a folder on a BPF file system.
DEFAULT_ROOT = "/sys/fs/bpf/kproxy"

OUTSIDER, POD, NODE = 0, 1, 2

DNAT, REJECT, DROP, ELSEWHERE = 0, 1, 2, 3
VERDICT_MASK = 0x03
LOCAL_ONLY = 0x04
MASQUERADE = 0x08

FRONTEND_AFFINITY = 0x01
FRONTEND_RANGES = 0x02
FRONTEND_REFUSE_LOOPBACK = 0x04
FRONTEND_MAGLEV = 0x08

ENDPOINT_LOCAL = 0x01

HOST_ONLY = 0x01
PROTECT_NODE_PORTS = 0x02
POD_BY_LINK = 0x04
DRAINING = 0x08
DSR_OPTION = 0x10
DSR_TUNNEL = 0x20

#: Names of enum reason, in order.
REASONS = (
    "no-endpoint",
    "no-local-endpoint",
    "undefined-port",
    "unused-cluster-ip",
    "source-range",
    "no-snat-port",
    "flow-table-full",
    "missing-slot",
    "node-port-bind",
    "malformed",
    "dsr-masqueraded",
    "dsr-too-long",
    "dsr-unknown",
    "refusal-limit",
    "unanswerable",
)
#: Names of enum carried, in order.
XDP_PACKETS = ("by-xdp", "by-tc")

_NUMBER = struct.Struct("=I")
_FRONTEND = struct.Struct("=IIIIBBBB")
_NO_ENDPOINT = {4: bytes(8), 6: bytes(20)}
_SLOT = struct.Struct("=II")
_ENDPOINT_TAIL = struct.Struct("!HBB")
_SETTINGS = struct.Struct("=QII4s16s4x")
_PLACE_HEAD = struct.Struct("=QII")

#: Bytes of struct table before its entries: the digest of what the table was made from.
TABLE_HEAD = 8


class FrontendValue(NamedTuple):
    """Value of frontends4/6; answers are indexed by OUTSIDER, POD, NODE.

    only: struct endpoint4/6 of the endpoint that the Cluster set has alone, empty if it has more or none.
    """

    service: int
    count_cluster: int
    count_local: int
    affinity_seconds: int
    answers: tuple[int, int, int]
    flags: int
    only: bytes = b""

    def pack(self, family: int) -> bytes:
        """Return the bytes of struct frontend4/6."""
        return _FRONTEND.pack(*self[:4], *self.answers, self.flags) + (self.only or _NO_ENDPOINT[family])

    @classmethod
    def unpack(cls, data: bytes) -> FrontendValue:
        """Read struct frontend4/6."""
        service, cluster, local, seconds, outsider, pod, node, flags = _FRONTEND.unpack_from(data)
        only = data[_FRONTEND.size :]
        return cls(service, cluster, local, seconds, (outsider, pod, node), flags, only if any(only) else b"")


class Settings(NamedTuple):
    """Value 0 of settings."""

    host_netns: int
    flags: int
    next_service: int
    node4: bytes = bytes(4)
    node6: bytes = bytes(16)

    def pack(self) -> bytes:
        """Return the bytes of struct settings."""
        return _SETTINGS.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Settings:
        """Read struct settings."""
        return cls(*_SETTINGS.unpack(data))


def frontend_key(family: int, ip: bytes, protocol: int, port: int) -> bytes:
    """Return a key of frontends4/6; an empty `ip` is a NodePort."""
    return (ip or bytes(4 if family == 4 else 16)) + struct.pack("!HBB", port, protocol, 0)


def unpack_frontend_key(key: bytes) -> tuple[bytes, int, int]:
    """Return (ip, empty for a NodePort; protocol; port)."""
    port, protocol, _pad = struct.unpack("!HBB", key[-4:])
    ip = key[:-4]
    return (ip if any(ip) else b""), protocol, port


def service_number(value: bytes) -> int:
    """Return the number of the service port in a value of frontends4/6, of any schema from NUMBERED_SINCE on."""
    number: int = _NUMBER.unpack_from(value)[0]
    return number


def set_number(service: int, local_only: bool) -> int:
    """Return the number of one of a service port's two endpoint sets."""
    return service << 1 | int(local_only)


def slot_key(set_id: int, slot: int) -> bytes:
    """Return a key of slots4/6."""
    return _SLOT.pack(set_id, slot)


def table_key(set_id: int) -> bytes:
    """Return a key of tables4/6."""
    return struct.pack("=I", set_id)


def table_value_size(entries: int) -> int:
    """Return the bytes of one value of tables4/6."""
    return TABLE_HEAD + 2 * entries


def table_entries(value_size: int) -> int:
    """Return the entries of the tables in a map with values of this size, 0 if it is made for none."""
    return max(0, value_size - TABLE_HEAD) // 2


def unpack_slot_key(key: bytes) -> tuple[int, int]:
    """Return (set, slot)."""
    set_id, slot = _SLOT.unpack(key)
    return set_id, slot


def endpoint(ip: bytes, port: int, flags: int = 0) -> bytes:
    """Return struct endpoint4/6."""
    return ip + _ENDPOINT_TAIL.pack(port, flags, 0)


def unpack_endpoint(data: bytes) -> tuple[bytes, int, int]:
    """Return (ip, port, flags)."""
    port, flags, _pad = struct.unpack("!HBB", data[-4:])
    return data[:-4], port, flags


def member_key(set_id: int, endpoint_data: bytes) -> bytes:
    """Return a key of members4/6: the set and the endpoint without its flags."""
    return struct.pack("=I", set_id) + endpoint_data[:-2] + b"\0\0"


def prefix_key(length: int, address: bytes) -> bytes:
    """Return a key of service_cidrs4/6 and pod_cidrs4/6 (longest-prefix tries)."""
    return struct.pack("=I", length) + address


def range_key(service: int, length: int, address: bytes) -> bytes:
    """Return a key of ranges4/6: the service number is part of the prefix."""
    return struct.pack("=I", 32 + length) + struct.pack("=I", service) + address


def prefixes_of(ranges: Sequence[tuple[bytes, bytes]]) -> list[tuple[int, bytes]]:
    """Cover inclusive address ranges with the fewest prefixes: (length, network)."""
    found: list[tuple[int, bytes]] = []
    for first, last in ranges:
        bits = 8 * len(first)
        start, end = int.from_bytes(first, "big"), int.from_bytes(last, "big")
        while start <= end:
            size = (start & -start).bit_length() - 1 if start else bits
            while start + (1 << size) - 1 > end:
                size -= 1
            found.append((bits - size, start.to_bytes(len(first), "big")))
            start += 1 << size
    return found


class SocketEntry(NamedTuple):
    """One element of sockets4/6: a socket that was translated, and where to."""

    cookie: int
    endpoint_ip: bytes
    endpoint_port: int
    dialled_ip: bytes
    dialled_port: int
    protocol: int
    service: int


def unpack_socket(key: bytes, value: bytes) -> SocketEntry:
    """Read one element of sockets4/6."""
    width = 4 if len(key) == 16 else 16
    (cookie,) = struct.unpack_from("=Q", key)
    (port,) = struct.unpack_from("!H", key, 8 + width)
    dialled_port, protocol = struct.unpack_from("!HB", value, width)
    (service,) = struct.unpack_from("=I", value, width + 4)
    return SocketEntry(cookie, key[8 : 8 + width], port, value[:width], dialled_port, protocol, service)


def unpack_pin(key: bytes, value: bytes) -> tuple[int, bytes]:
    """Read one element of affinity4/6: the number of the service port, and the endpoint without flags."""
    (service,) = struct.unpack_from("=I", key, len(key) - 4)
    return service, value[8 : 16 if len(key) == 8 else 28]


class Place(NamedTuple):
    """One element of connected4/6: the connected TCP socket that holds it. taken: 0 if nobody does."""

    cookie: int
    taken: int
    elsewhere: int
    dialled_ip: bytes
    dialled_port: int
    endpoint_ip: bytes
    endpoint_port: int

    def pack(self) -> bytes:
        """Return the bytes of struct connected4/6."""
        ports = struct.pack("!HHI", self.dialled_port, self.endpoint_port, 0)
        return _PLACE_HEAD.pack(self.cookie, self.taken, self.elsewhere) + self.dialled_ip + self.endpoint_ip + ports

    @classmethod
    def unpack(cls, data: bytes) -> Place:
        """Read struct connected4/6."""
        width = 4 if len(data) == SIZES["connected4"][1] else 16
        dialled, endpoint_ip, ports = data[16 : 16 + width], data[16 + width : 16 + 2 * width], data[16 + 2 * width :]
        dialled_port, endpoint_port = struct.unpack_from("!HH", ports)
        cookie, taken, elsewhere = _PLACE_HEAD.unpack_from(data)
        return cls(cookie, taken, elsewhere, dialled, dialled_port, endpoint_ip, endpoint_port)


def places_taken(places: Iterable[bytes]) -> int:
    """Return how many of the values of connected4/6 belong to an open socket."""
    return sum(_PLACE_HEAD.unpack_from(data)[1] != 0 for data in places)


#: Bytes of key and value, for the capacity message and the layout test.
SIZES: dict[str, tuple[int, int]] = {
    "frontends4": (8, 28),
    "frontends6": (20, 40),
    "slots4": (8, 8),
    "slots6": (8, 20),
    "members4": (12, 4),
    "members6": (24, 4),
    "node_addrs4": (4, 4),
    "node_addrs6": (16, 4),
    "cluster_ips4": (4, 4),
    "cluster_ips6": (16, 4),
    "affinity4": (8, 16),
    "affinity6": (20, 32),
    "connected4": (4, 32),
    "connected6": (4, 56),
    "sockets4": (16, 12),
    "sockets6": (32, 24),
    "settings": (4, 40),
    "flow_filter": (4, flow_filter.VALUE_SIZE),
    "served_blocks": (4, served_blocks.VALUE_SIZE),
    "tables4": (4, 8),
    "tables6": (4, 8),
}
