# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Element keys and values as the kernel holds them: every part of a concatenation is padded to four bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Element, Key
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint

_PROTOCOL_PORT = struct.Struct(">B3xH2x")
_PORT = struct.Struct(">H2x")
#: The slot is compared with the output of numgen, a number in the byte order of the host.
_SLOT = struct.Struct("=I")


class _Packed(dict[int, bytes]):
    """Numbers packed as parts of a key, each once: there are few, and a look-up costs less than packing does."""

    def __init__(self, pack: Callable[[int], bytes]) -> None:
        super().__init__()
        self._pack = pack

    def __missing__(self, number: int) -> bytes:
        made = self[number] = self._pack(number)
        return made


#: Parts of keys and values: a port, a slot, a protocol and a port.
PORTS = _Packed(_PORT.pack)
SLOTS = _Packed(_SLOT.pack)
PROTOCOL_PORTS = {protocol: _Packed(partial(_PROTOCOL_PORT.pack, protocol)) for protocol in NAMES}


def frontend_key(key: FrontendKey) -> bytes:
    """Return address . protocol . port, or protocol . port for a NodePort."""
    _family, ip, protocol, port = key
    return ip + PROTOCOL_PORTS[protocol][port]


def read_frontend_key(family: int, raw: bytes) -> FrontendKey:
    """Return the frontend of a key as frontend_key() makes it."""
    protocol, port = _PROTOCOL_PORT.unpack(raw[-8:])
    return FrontendKey(family, raw[:-8], protocol, port)


def slot_prefix(key: FrontendKey) -> bytes:
    """Return the part of an endpoint map's key that says whose slot it is: [address .] port."""
    _family, ip, _protocol, port = key
    return ip + PORTS[port]


def slot_key(prefix: bytes, slot: int) -> bytes:
    """Return the key of one slot."""
    return prefix + SLOTS[slot]


def read_slot_key(raw: bytes) -> tuple[bytes, int]:
    """Return (prefix, slot) of a key as slot_key() makes it."""
    return raw[:-4], _SLOT.unpack(raw[-4:])[0]


def endpoint_value(endpoint: Endpoint) -> bytes:
    """Return address . port."""
    ip, port, _local = endpoint
    return ip + PORTS[port]


def endpoint_slots(prefix: bytes, first: int, endpoints: Iterable[Endpoint]) -> list[Element]:
    """Return the elements of endpoints in a row of slots; the same as slot_key() and endpoint_value() make, at once."""
    slots, ports = SLOTS, PORTS
    return [(prefix + slots[slot], ip + ports[port], None) for slot, (ip, port, _local) in enumerate(endpoints, first)]


def read_endpoint_value(raw: bytes) -> tuple[bytes, int]:
    """Return (address, port) of a value as endpoint_value() makes it."""
    return raw[:-4], _PORT.unpack(raw[-4:])[0]


def hairpin_key(endpoint: Endpoint, protocol: int) -> bytes:
    """Return address . address . protocol . port: a connection from an endpoint to itself."""
    ip, port, _local = endpoint
    return ip + ip + PROTOCOL_PORTS[protocol][port]


def source_range_key(key: FrontendKey, first: bytes, last: bytes) -> Key:
    """Return address . protocol . port . source-range: the two ends of a concatenated interval.

    A range of one address is that key alone, as the kernel gives it back.
    """
    prefix = frontend_key(key)
    return prefix + first if first == last else (prefix + first, prefix + last)
