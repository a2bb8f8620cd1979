# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Deleting the UDP flows that lead to endpoints which have gone."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.flows import UdpFlow, is_stale
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import local_addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import Wanted
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import UDP


def delete_stale_flows(table: ServiceTable, family: int) -> int:
    """Delete the stale flows of one family, 4 or 6, and return how many there were.

    Raises KernelError; what was deleted until then stays deleted.
    """
    keys = [key for key in table.frontends if key.family == family and key.protocol == UDP]
    if not keys:
        return 0
    wanted = Wanted(
        frozenset((key.ip, key.port) for key in keys if key.ip),
        frozenset(key.port for key in keys if not key.ip),
    )
    ours = frozenset(address.address for address in local_addresses(family))
    with Conntrack() as conntrack:
        stale = [
            flow
            for flow in conntrack.flows(family, wanted)
            if is_stale(
                table,
                UdpFlow(
                    flow.destination, flow.destination_port, flow.reply_source, flow.reply_source_port, flow.replied
                ),
                ours,
            )
        ]
        return conntrack.delete(stale)
