# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which tables and base chains a node has, everybody's: names, hooks and policies, nothing that is in them.

Asked over netlink. The nft command is no help: it parses the sets of all tables first, and older versions of it die on
what a newer one stored there (kubernetes/kubernetes#136786).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_NETFILTER,
    attribute_map,
    open_or_explain,
    text,
)

_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_HOOKS = ("prerouting", "input", "forward", "output", "postrouting")
#: Families whose hooks have the names above; ARP and netdev number theirs differently.
_IP_LIKE = frozenset((1, 2, 7, 10))
_DROP, _ACCEPT = 0, 1


class Table(NamedTuple):
    """A table by its family word ("ip", "inet") and name."""

    family: str
    name: str


class BaseChain(NamedTuple):
    """A chain on a netfilter hook. `policy` is what happens to a packet that no rule decides."""

    family: str
    table: str
    chain: str
    hook: str
    type: str
    priority: int
    policy: str


def tables() -> list[Table]:
    """Return every nftables table of this network namespace, in the kernel's order."""
    with open_or_explain(NETLINK_NETFILTER) as connection:
        replies = connection.dump("list tables", nft.message_type(nft.GETTABLE), nft.nfgenmsg(0))
    found = []
    for reply in replies:
        family = _FAMILIES.get(reply.payload[0], str(reply.payload[0]))
        found.append(Table(family, text(attribute_map(reply.payload, 4)[nft.TABLE_NAME])))
    return found


def chain_names(family: str, table: str) -> list[str]:
    """Return the names of a table's chains; none for a table that does not exist. family is its word, such as "ip"."""
    with open_or_explain(NETLINK_NETFILTER) as connection:
        replies = connection.dump("list chains", nft.message_type(nft.GETCHAIN), nft.nfgenmsg(0))
    found = []
    for reply in replies:
        parts = attribute_map(reply.payload, 4)
        if _FAMILIES.get(reply.payload[0]) == family and text(parts[nft.CHAIN_TABLE]) == table:
            found.append(text(parts[nft.CHAIN_NAME]))
    return found


def base_chains() -> list[BaseChain]:
    """Return every base chain on a hook of the IP and bridge families."""
    with open_or_explain(NETLINK_NETFILTER) as connection:
        replies = connection.dump("list chains", nft.message_type(nft.GETCHAIN), nft.nfgenmsg(0))
    found = []
    for reply in replies:
        parts = attribute_map(reply.payload, 4)
        if reply.payload[0] not in _IP_LIKE or nft.CHAIN_HOOK not in parts:
            continue
        hook = attribute_map(parts[nft.CHAIN_HOOK])
        (number,) = struct.unpack(">I", hook[nft.HOOK_NUMBER])
        (priority,) = struct.unpack(">i", hook[nft.HOOK_PRIORITY])
        policy = struct.unpack(">I", parts[nft.CHAIN_POLICY])[0] if nft.CHAIN_POLICY in parts else _ACCEPT
        found.append(
            BaseChain(
                _FAMILIES[reply.payload[0]],
                text(parts[nft.CHAIN_TABLE]),
                text(parts[nft.CHAIN_NAME]),
                _HOOKS[number] if number < len(_HOOKS) else "ingress",
                text(parts[nft.CHAIN_TYPE]) if nft.CHAIN_TYPE in parts else "",
                priority,
                "drop" if policy == _DROP else "accept",
            )
        )
    return found
