# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The nft tables of the eBPF backend that reject: what no program can answer with an error is rejected by the kernel.

* Packets that the programs have marked, of whoever sends through this node.
* Packets of the node's own to a cluster IP that no program sees before they are routed: pings, and SCTP to a port that
  no Service has. That takes the cluster IPs as a set; TCP and UDP are the socket programs' business.

They name no Service; without nft on the node what would be refused is dropped, or goes its way.
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
_MARKED = """  chain filter-{hook} {{
    type filter hook {hook} priority filter; policy accept;
    meta mark & {mark:#010x} == {mark:#010x} reject
  }}
"""


# Behind the filter of our nftables tables, which carry SCTP Services and may have to drop in silence.
_OWN = """  set {set} {{
    type {address};
  }}
  chain filter-output {{
    type filter hook output priority filter + 1; policy accept;
    meta l4proto != {{ tcp, udp }} {word} daddr @{set} reject
  }}
"""


def text(mark: int) -> str:
    """Return both tables without a cluster IP; loading them again replaces them at once."""
    marked = "".join(_MARKED.format(hook=hook, mark=mark) for hook in ("input", "forward"))
    tables = []
    for family, word in _WORDS.items():
        own = _OWN.format(set=CLUSTER_IPS, address="ipv%d_addr" % family, word=word)
        tables.append(
            f"table {word} {TABLE} {{}}\ndelete table {word} {TABLE}\ntable {word} {TABLE} {{\n{marked}{own}}}\n"
        )
    return "".join(tables)


def exists() -> bool:
    """Tell whether both tables are there, as this version makes them."""
    with Nfnetlink(TABLE) as kernel:
        return all(kernel.table_exists(family) and kernel.set_exists(SetName(family, CLUSTER_IPS)) for family in _WORDS)


def load(mark: int, cluster_ips: Collection[bytes]) -> str:
    """Load the tables; return why they could not be, or nothing."""
    try:
        NftCommand().load(text(mark))
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
