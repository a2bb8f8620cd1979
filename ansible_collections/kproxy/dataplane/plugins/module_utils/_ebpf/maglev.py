# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Maglev consistent hashing: the table that turns a hash into an endpoint, and the hashes that go in.

Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer" (NSDI 2016), section 3.4. A table follows
from the endpoints alone: neither their order nor the node matters, so every node sends a flow to the same endpoint. All
endpoints get the same share, to within one entry; when one comes or goes, most entries stay as they are.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout

#: How an endpoint is chosen for clients from outside.
RANDOM, MAGLEV = "random", "maglev"
ALGORITHMS = (RANDOM, MAGLEV)

#: Table sizes to choose from: primes, so that every endpoint's walk visits every entry. An even spread and little
#: disruption want a hundred entries for each endpoint.
SIZES = (251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071)
DEFAULT_SIZE = 16381

#: Seed of the hashes, as in src/hash.h. A node with another seed would choose otherwise.
SEED = 0x6B70726F

_WORD = 0xFFFFFFFF


def permute(endpoint: bytes, size: int) -> tuple[int, int]:
    """Return (offset, skip): where an endpoint's walk through a table begins, and how far each of its steps goes.

    endpoint: address and port, the same bytes on every node. size: a prime.
    """
    first, second = struct.unpack_from(">QQ", hashlib.sha256(endpoint).digest())
    return first % size, second % (size - 1) + 1


def choose(endpoints: Sequence[bytes], size: int) -> list[int]:
    """Return the table: for each entry an index into `endpoints`.

    Args:
        endpoints: distinct; address and port without anything that differs between nodes. At least one, at most `size`.
        size: one of SIZES.
    """
    order = sorted(range(len(endpoints)), key=endpoints.__getitem__)
    walks = [permute(endpoints[index], size) for index in order]
    table = [-1] * size
    at = [offset for offset, _skip in walks]
    turns = list(zip(range(len(order)), order, [skip for _offset, skip in walks]))
    full, rest = divmod(size, len(order))
    # In turns, each endpoint takes the next entry of its own walk that is still free.
    for turn in range(full + 1):
        for walker, index, skip in turns if turn < full else turns[:rest]:
            position = at[walker]
            while table[position] >= 0:
                position += skip
                if position >= size:
                    position -= size
            table[position] = index
            at[walker] = position
    return table


def identity(endpoint: bytes) -> bytes:
    """Return what names an endpoint on every node: struct endpoint4/6 without its flags."""
    return endpoint[:-2]


def inputs_digest(slots: Sequence[bytes], size: int) -> bytes:
    """Return eight bytes that tell whether a table in the kernel is the one for these slots.

    slots: struct endpoint4/6 in slot order.
    """
    digest = hashlib.sha256(b"%d " % size)
    for held in slots:
        digest.update(identity(held))
    return digest.digest()[: layout.TABLE_HEAD]


def table_value(slots: Sequence[bytes], size: int) -> bytes:
    """Return struct table for an endpoint set, as in tables4/6. slots: struct endpoint4/6 in slot order."""
    table = array("H", choose([identity(held) for held in slots], size))
    return inputs_digest(slots, size) + table.tobytes()


def flow_hash(source: bytes, destination: bytes, sport: int, dport: int, protocol: int) -> int:
    """Return the hash of a flow as its client sent it. Addresses packed."""
    return murmur3(source + destination + struct.pack("!HH", sport, dport) + struct.pack("<I", protocol))


def client_hash(client: bytes) -> int:
    """Return the hash that chooses where ClientIP affinity is on: of the client's packed address alone."""
    return murmur3(client)


def murmur3(data: bytes, seed: int = SEED) -> int:
    """Return MurmurHash3_x86_32 of data in whole words of four bytes."""
    value = seed
    for (word,) in struct.iter_unpack("<I", data):
        word = word * 0xCC9E2D51 & _WORD
        word = (word << 15 | word >> 17) & _WORD
        value ^= word * 0x1B873593 & _WORD
        value = (value << 13 | value >> 19) & _WORD
        value = (value * 5 + 0xE6546B64) & _WORD
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _WORD
    value = (value ^ value >> 13) * 0xC2B2AE35 & _WORD
    return value ^ value >> 16
