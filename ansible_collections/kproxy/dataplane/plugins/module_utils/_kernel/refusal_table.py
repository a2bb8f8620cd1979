# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The nft tables of the eBPF backend that reject what no program sees before it is routed.

That is what the node itself sends to a cluster IP and no socket program refuses: pings, and SCTP to a port that no
Service has. It takes the cluster IPs as a set. They stand in the output hook alone, so a packet that the node forwards
never meets them. Without nft on the node such packets go their way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import SetName, Transaction

TABLE = "kproxy-refuse"
_WORDS = {4: "ip", 6: "ip6"}
CLUSTER_IPS = "cluster-ips"
#: Earlier versions rejected what their programs had marked, for which every forwarded packet had to pass a rule.
_FORMER_CHAIN = "filter-forward"
# Behind the filter of our nftables tables, which carry SCTP Services and may have to drop in silence.
_OWN = """  set {set} {{
    type {address};
  }}
  chain filter-output {{
    type filter hook output priority filter + 1; policy accept;
    meta l4proto != {{ tcp, udp }} {word} daddr @{set} reject
  }}
"""


def text() -> str:
    """Return both tables without a cluster IP; loading them again replaces them at once."""
    tables = []
    for family, word in _WORDS.items():
        own = _OWN.format(set=CLUSTER_IPS, address="ipv%d_addr" % family, word=word)
        tables.append(f"table {word} {TABLE} {{}}\ndelete table {word} {TABLE}\ntable {word} {TABLE} {{\n{own}}}\n")
    return "".join(tables)


def exists() -> bool:
    """Tell whether both tables are there, as this version makes them. Raises KernelError."""
    with Nfnetlink(TABLE) as kernel:
        return all(
            kernel.table_exists(family)
            and kernel.set_exists(SetName(family, CLUSTER_IPS))
            and not kernel.chain_exists(family, _FORMER_CHAIN)
            for family in _WORDS
        )


def load(cluster_ips: Collection[bytes]) -> str:
    """Load the tables; return why they could not be, or nothing."""
    try:
        NftCommand().load(text())
        settle(cluster_ips)
    except KernelError as error:
        return str(error)
    return ""


def settle(cluster_ips: Collection[bytes]) -> None:
    """Read the sets and write what differs. Raises KernelError."""
    wanted = {family: {ip for ip in cluster_ips if len(ip) == width} for family, width in ((4, 4), (6, 16))}
    change = Transaction()
    with Nfnetlink(TABLE) as kernel:
        for family, addresses in wanted.items():
            name = SetName(family, CLUSTER_IPS)
            held = {key for key, _value, _comment in kernel.dump_elements(name)}
            for key in held - addresses:
                change.delete(name, key)
            for ip in addresses - held:
                change.add(name, ip)
        if not change.empty:
            kernel.commit(change)


def follow(added: Iterable[bytes], removed: Iterable[bytes]) -> None:
    """Make a change of the sets that were as they should be. Raises KernelError."""
    change = Transaction()
    for ip in removed:
        change.delete(SetName(4 if len(ip) == 4 else 6, CLUSTER_IPS), ip)
    for ip in added:
        change.add(SetName(4 if len(ip) == 4 else 6, CLUSTER_IPS), ip)
    if not change.empty:
        with Nfnetlink(TABLE) as kernel:
            kernel.commit(change)


def remove() -> None:
    """Remove the tables, if they are there."""
    lines = [f"table {word} {TABLE} {{}}\ndelete table {word} {TABLE}\n" for word in _WORDS.values()]
    with contextlib.suppress(KernelError):
        NftCommand().load("".join(lines))
