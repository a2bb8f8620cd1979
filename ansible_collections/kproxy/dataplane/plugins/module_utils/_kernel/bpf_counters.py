# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Counters that each processor keeps for itself, in a per-CPU array with one element of 64 bits per name."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap


def sums(counters: BpfMap | None, names: tuple[str, ...]) -> dict[str, int]:
    """Return each counter summed over processors, by name in the order of the elements; zeros without a map."""
    found = dict.fromkeys(names, 0)
    if counters is None:
        return found
    size = 8 * _possible_cpus()
    for index, name in enumerate(names):
        data = bpf.map_lookup(counters.fd, index.to_bytes(4, "little"), size) or b""
        found[name] = sum(int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8))
    return found


def _possible_cpus() -> int:
    """Return how many values the kernel gives for one element: one per processor that could ever be there."""
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
        return int(file.read().strip().split("-")[-1].split(",")[-1]) + 1
