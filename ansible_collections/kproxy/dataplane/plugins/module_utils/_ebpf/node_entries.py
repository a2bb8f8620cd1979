# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the maps say about the node itself: where NodePorts answer, who is a pod, which ranges belong to Services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.entries import PRESENT
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import NodeRules

#: Maps whose whole content this module decides, without the family digit; pod_links has none.
NODE_MAPS = ("node_addrs", "service_cidrs", "pod_cidrs")


def node_entries(
    rules: Mapping[int, NodeRules], addresses: Iterable[bytes], links: Mapping[str, int]
) -> dict[str, dict[bytes, bytes]]:
    """Return the wanted content of the node's maps.

    Args:
        rules: of every served family.
        addresses: the addresses of the node's interfaces, loopback left out.
        links: interface index by name.
    """
    maps: dict[str, dict[bytes, bytes]] = {"pod_links": {}}
    held = list(addresses)
    for family, rule in rules.items():
        ranges = rule.node_port_ranges
        maps["node_addrs%d" % family] = {
            ip: PRESENT
            for ip in held
            if len(ip) == (4 if family == 4 else 16)
            and (ranges is None or any(prefix.contains(ip) for prefix in ranges))
        }
        maps["service_cidrs%d" % family] = {
            layout.prefix_key(prefix.length, prefix.network): PRESENT for prefix in rule.service_cidrs
        }
        maps["pod_cidrs%d" % family] = {
            layout.prefix_key(prefix.length, prefix.network): PRESENT for prefix in rule.pods.source_ranges
        }
        for name, index in links.items():
            if not rule.pods.source_ranges and rule.pods.recognises(b"", name):
                maps["pod_links"][index.to_bytes(4, "little")] = PRESENT
    return maps


def pods_by_link(rules: Mapping[int, NodeRules]) -> bool:
    """Whether pods are told by the interface they come in by."""
    return any(rule.pods.interface or rule.pods.interface_prefix for rule in rules.values())
