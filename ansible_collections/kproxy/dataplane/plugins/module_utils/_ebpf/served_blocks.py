# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which byte of map served_blocks stands for a frontend or a cluster IP (src/blocks.h, src/open_family.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flow_filter import MIX, MIX6, WORD

BITS = 14
SLOTS = 1 << BITS
#: struct served_blocks: whether it is asked at all, then the slots.
STATE_BYTES = 8
VALUE_SIZE = STATE_BYTES + SLOTS

#: Maps whose keys begin with an address that is marked before the element is written, and the family.
MARKED = {"frontends4": 4, "frontends6": 6, "cluster_ips4": 4, "cluster_ips6": 6}
#: Bytes of an address that name its block.
_BLOCK = {4: 3, 6: 14}


def slots_of(family: int, keys: Iterable[bytes]) -> set[int]:
    """Return the slots of the blocks that these addresses, or keys that begin with one, are in."""
    width = _BLOCK[family]
    mixed = _mix4 if family == 4 else _mix6
    return {(mixed(block) * MIX & WORD) >> 64 - BITS for block in {key[:width] for key in keys}}


def _mix4(block: bytes) -> int:
    return int.from_bytes(block, "little")


def _mix6(block: bytes) -> int:
    low, high = struct.unpack("<QQ", block + b"\0\0")
    both: int = low * MIX + high * MIX6 & WORD
    return both ^ both >> 32
