# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the maps must say about the node here and now: its addresses, links and network namespace, and our options."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.node_entries import node_entries, pods_by_link
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import FORWARDING_FLAGS, Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import local_addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netns_cookie import own_netns_cookie
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import devices
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import is_loopback


def entries_here(table: ServiceTable) -> dict[str, dict[bytes, bytes]]:
    """Return the wanted content of the maps about the node."""
    addresses = [held.address for held in local_addresses() if held.scope != "host" and held.scope != "link"]
    links = {name: device.index for name, device in devices().items()}
    return node_entries(table.rules, addresses, links)


def settings_here(table: ServiceTable, options: Options, next_service: int) -> layout.Settings:
    """Return the wanted settings."""
    flags = (
        (layout.HOST_ONLY if options.host_only else 0)
        | (layout.PROTECT_NODE_PORTS if options.protect_node_ports else 0)
        | (layout.POD_BY_LINK if pods_by_link(table.rules) else 0)
        | FORWARDING_FLAGS[options.forwarding]
    )
    # A loopback bindAddress is nothing that an endpoint could answer to.
    own = [ip for ip in table.view.primary_addresses if not is_loopback(ip)]
    own += [held.address for held in local_addresses() if held.scope == "global"]
    node4 = next((ip for ip in own if len(ip) == 4), bytes(4))
    node6 = next((ip for ip in own if len(ip) == 16), bytes(16))
    return layout.Settings(own_netns_cookie(), flags, next_service, node4, node6)
