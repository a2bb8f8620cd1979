# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The memory of map served_blocks, which only we write."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import served_blocks
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap


def start(maps: Mapping[str, BpfMap]) -> None:
    """Mark what the maps hold, then let programs ask the blocks. Raises OSError."""
    opened = maps["served_blocks"]
    for name in served_blocks.MARKED:
        mark(opened, name, maps[name].dump())
    with mmap.mmap(opened.fd, served_blocks.VALUE_SIZE) as memory:
        memory[0] = 1


def mark(opened: BpfMap, name: str, keys: Iterable[bytes]) -> None:
    """Say that elements of map `name` are about to be written. Raises OSError."""
    family = served_blocks.MARKED.get(name)
    if family is not None:
        with mmap.mmap(opened.fd, served_blocks.VALUE_SIZE) as memory:
            for slot in served_blocks.slots_of(family, keys):
                memory[served_blocks.STATE_BYTES + slot] = 1
