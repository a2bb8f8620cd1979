"""Who on this machine listens for changes of rulesets, which makes everybody's commits dearer.

While any socket is a member of nf_tables' notification group, in whatever network namespace, the kernel makes a message
for every element that anybody writes (netlink_has_listeners() asks for the protocol, not for the namespace). A lab that
is up counts: each of its kproxyd listens.
"""

from __future__ import annotations

import os
from pathlib import Path

_NETLINK_NETFILTER = 12
_NFTABLES_GROUP = 1 << 6  # NFNLGRP_NFTABLES is group 7


def ruleset_listeners(proc: Path = Path("/proc")) -> int:
    """Return how many sockets listen, over the network namespaces of all processes."""
    seen: set[str] = set()
    found = 0
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        try:
            namespace = os.readlink(process / "ns/net")
            if namespace not in seen:
                found += _listeners((process / "net/netlink").read_text())
                seen.add(namespace)
        except OSError:  # it has ended
            continue
    return found


def _listeners(table: str) -> int:
    """Count the members of the group in a /proc/net/netlink: columns 2 and 4 are the protocol and the groups."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return sum(int(row[1]) == _NETLINK_NETFILTER and bool(int(row[3], 16) & _NFTABLES_GROUP) for row in rows)
