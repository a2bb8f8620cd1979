# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What nearly all rows look like, put into tables that hold nothing yet. Pure, and the hot path of a cold start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    CLUSTER,
    CLUSTER_IP,
    DNAT,
    Frontend,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.elements import ENDPOINT_MAPS, goto_pick
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import (
    PORTS,
    PROTOCOL_PORTS,
    SLOTS,
    hairpin_key,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.set_change import FamilyChange
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Element, Key


class _Fill(NamedTuple):
    """Where the elements of one family go. verdicts: by count of endpoints. cluster_ips and hairpins: users counted."""

    services: list[Element]
    endpoints: dict[int, list[Element]]
    verdicts: dict[int, str]
    cluster_ips: dict[Key, int]
    hairpins: dict[Key, int]


def fill(
    rows: Iterable[Frontend],
    changes: Mapping[int, FamilyChange],
    needed: Mapping[int, Mapping[str, dict[Key, int]]],
    need_chain: Callable[[int, str], None],
) -> list[Frontend]:
    """Ask for the elements of cluster IPs under the Cluster policy; return the other rows.

    The elements are those of row_elements(), which costs three times as much: it makes a value of each row's, so that
    two of them can be compared.
    """
    families = {
        family: _Fill(
            change[names.SERVICES].adds,
            {protocol: change[name].adds for protocol, name in ENDPOINT_MAPS.items()},
            {},
            needed[family][names.CLUSTER_IPS],
            needed[family][names.HAIRPIN],
        )
        for family, change in changes.items()
    }
    comment_of = names.service_port_comment
    others: list[Frontend] = []
    for row in rows:
        key, kind, service_port, cluster, local, on_node, outsiders, _pods, _node, _sources, affinity, _loopback = row
        count = len(cluster)
        if kind != CLUSTER_IP or outsiders[0] != DNAT or local or affinity or count > names.MAX_SLOTS:
            others.append(row)
            continue
        family, ip, protocol, port = key
        services, endpoints, verdicts, cluster_ips, hairpins = families[family]
        verdict = verdicts.get(count)
        if verdict is None:
            verdict = verdicts[count] = goto_pick(names.CLUSTER_IP, count, CLUSTER, False)
            need_chain(family, verdict)
        services.append((ip + PROTOCOL_PORTS[protocol][port], verdict, comment_of(service_port)))
        cluster_ips[ip] = cluster_ips.get(ip, 0) + 1
        prefix, slots = ip + PORTS[port], endpoints[protocol]
        for slot, (address, number, _local) in enumerate(cluster):
            slots.append((prefix + SLOTS[slot], address + PORTS[number], None))
        for endpoint in on_node:
            hairpin = hairpin_key(endpoint, protocol)
            hairpins[hairpin] = hairpins.get(hairpin, 0) + 1
    return others
