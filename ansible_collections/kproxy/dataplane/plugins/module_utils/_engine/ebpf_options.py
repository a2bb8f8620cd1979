# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The options of the eBPF backend."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.capacity import DEFAULT_TABLE_MEMORY
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import DEFAULT_ROOT
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import XdpOptions

#: Masquerade, or leave the client's address and let the endpoint's node answer (direct server return).
SNAT, DSR_BY_OPTION, DSR_BY_IPIP = "snat", "dsr-option", "dsr-ipip"
FORWARDINGS = (SNAT, DSR_BY_OPTION, DSR_BY_IPIP)
FORWARDING_FLAGS = {SNAT: 0, DSR_BY_OPTION: layout.DSR_OPTION, DSR_BY_IPIP: layout.DSR_TUNNEL}


def forwarding_of(flags: int) -> str:
    """Return the name of the forwarding that a node's settings ask for."""
    return next(name for name, bits in reversed(FORWARDING_FLAGS.items()) if flags & bits == bits)


class Options(NamedTuple):
    """Settings of this backend alone.

    host_only: sockets of pods are left to the packet path (service meshes, virtual machines). cgroup: the directory
    that covers the node's processes, empty for the root of the hierarchy. table_size: entries of the Maglev table of
    every Service that is dialled from outside, 0 for random choice. table_memory: MiB that all tables may take.
    xdp: where packets are forwarded before the stack. forwarding: how outsiders reach endpoints of other nodes.
    excluded: patterns of the names of devices that get no packet program.
    """

    root: str = DEFAULT_ROOT
    cgroup: str = ""
    host_only: bool = False
    protect_node_ports: bool = True
    table_size: int = 0
    table_memory: int = DEFAULT_TABLE_MEMORY
    xdp: XdpOptions = XdpOptions()
    forwarding: str = SNAT
    excluded: tuple[str, ...] = ()


DEFAULTS = Options()
