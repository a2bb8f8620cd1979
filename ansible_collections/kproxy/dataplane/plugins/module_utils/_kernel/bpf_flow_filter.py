# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The memory of map flow_filter, which programs write while we do, byte by byte, and the wait for programs that run."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flow_filter
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap

_ARRAY, _ARRAY_OF_MAPS = 2, 12


class FlowFilter:
    """The filter in front of the flow tables, open while the context lasts. Raises OSError."""

    def __init__(self, opened: BpfMap) -> None:
        self._memory = mmap.mmap(opened.fd, flow_filter.VALUE_SIZE)

    def __enter__(self) -> FlowFilter:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.close()

    @property
    def in_use(self) -> bool:
        """Whether programs ask the filter before they look up a flow."""
        return bool(self._memory[0] & flow_filter.IN_USE)

    @property
    def array(self) -> int:
        """Which array they read, or read last."""
        return self._memory[0] & flow_filter.ARRAY

    def content(self, array: int) -> bytes:
        """Return the slots of an array."""
        start = flow_filter.array_offset(array) + flow_filter.GROUPS
        return self._memory[start : start + flow_filter.SLOTS]

    def filled(self) -> int:
        """Return how many slots are set in the array that is read."""
        return self.content(self.array).count(1)

    def clear(self, array: int) -> None:
        """Forget all that an array says."""
        start = flow_filter.array_offset(array)
        self._memory[start : start + flow_filter.ARRAY_BYTES] = bytes(flow_filter.ARRAY_BYTES)

    def mark(self, array: int, slots: Iterable[int]) -> None:
        """Set slots and their groups, one by one: what programs set meanwhile stays set."""
        start = flow_filter.array_offset(array)
        for slot in slots:
            self._memory[start + (slot >> flow_filter.GROUP_BITS)] = 1
            self._memory[start + flow_filter.GROUPS + slot] = 1

    def read_from(self, array: int) -> None:
        """Let programs ask this array from now on."""
        self._memory[0] = flow_filter.IN_USE | array

    def stop(self) -> None:
        """Let programs look up everything."""
        self._memory[0] = 0

    @staticmethod
    def wait() -> None:
        """Wait until every program that runs now has ended, and what it wrote can be seen."""
        wait_for_programs()


def wait_for_programs() -> None:
    """Wait until every run of a program that has begun before this call has ended. Takes about ten milliseconds.

    Updating a map of maps waits for an RCU grace period, so that user space knows that nobody uses the former map
    (kernel/bpf/syscall.c, maybe_wait_bpf_programs); membarrier(2) would do, but not on nohz_full processors.
    Raises OSError.
    """
    inner = bpf.map_create("kp_wait", _ARRAY, 4, 4, 1)
    try:
        outer = bpf.map_create("kp_wait", _ARRAY_OF_MAPS, 4, 4, 1, inner=inner)
        try:
            bpf.map_update(outer, bytes(4), struct.pack("=I", inner))
        finally:
            os.close(outer)
    finally:
        os.close(inner)
