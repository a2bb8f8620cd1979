# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell NodePorts that nobody can reach: ranges that no address of the node lies in close all of them.

So does a primary address that is on no interface, such as one that a router in front translates.
"""

from __future__ import annotations

from collections.abc import Collection

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import is_loopback


def closed_node_ports(table: ServiceTable, local_addresses: Collection[bytes]) -> list[str]:
    """Return one sentence for every family with NodePorts of which no address of this node accepts any."""
    here = [ip for ip in local_addresses if not is_loopback(ip)]
    found = []
    for family, rules in sorted(table.rules.items()):
        ranges = rules.node_port_ranges
        if not ranges or any(prefix.contains(ip) for prefix in ranges for ip in here):
            continue
        if any(not key.ip and key.family == family for key in table.frontends):
            found.append(
                f"no NodePort is served in IPv{family}: no interface of this node has an address in "
                f"{', '.join(map(str, ranges))}; set nodePortAddresses to ranges of those it has"
            )
    return found
