# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The filter in front of flows4/6: which byte stands for an entry (src/filter.h, src/filter_family.h).

The hash is part of the layout: programs of two versions set and read the same bytes while links are swapped.
"""

from __future__ import annotations

import struct

BITS = 17
SLOTS = 1 << BITS
#: State of the filter: whether it is asked at all, and which of its two arrays.
IN_USE, ARRAY = 0x02, 0x01
#: So many slots, in bits, have one byte more in common, which is asked first.
GROUP_BITS = 5
GROUPS = SLOTS >> GROUP_BITS
#: struct flow_filter: the state, then the arrays, each the bytes of the groups and those of the slots.
STATE_BYTES = 8
ARRAY_BYTES = GROUPS + SLOTS
VALUE_SIZE = STATE_BYTES + 2 * ARRAY_BYTES
#: Of the hash, and of the one of served_blocks.
MIX, MIX6, MIX_PORT = 0x9E3779B97F4A7C15, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
WORD = (1 << 64) - 1
#: The tuple at the head of a key of flows4/6, in host order, as the programs load it.
_TUPLE4, _TUPLE6 = struct.Struct("=IIHH"), struct.Struct("=QQQQHH")
_KEY4 = 16


def array_offset(array: int) -> int:
    """Return where one of the two arrays begins."""
    return STATE_BYTES + array * ARRAY_BYTES


def slot_of(key: bytes) -> int:
    """Return the slot of a key of flows4 or flows6; both directions of a pair of ends have the same."""
    if len(key) == _KEY4:
        source, destination, sport, dport = _TUPLE4.unpack_from(key)
        one = (source << 16 | sport) * MIX & WORD
        other = (destination << 16 | dport) * MIX & WORD
    else:
        low, high, to_low, to_high, sport, dport = _TUPLE6.unpack_from(key)
        one = low * MIX + high * MIX6 + sport * MIX_PORT & WORD
        other = to_low * MIX + to_high * MIX6 + dport * MIX_PORT & WORD
    both: int = (one ^ one >> 32) + (other ^ other >> 32)
    return (both * MIX & WORD) >> 64 - BITS
