# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Find kube-proxy's objects in files of rules that are loaded at boot.

Who saved the rules of a node while kube-proxy ran has saved kube-proxy's with them, and every boot brings them back:
old endpoints, ahead of or beside those that are true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import ownership

#: Where distributions keep what they load at boot; patterns as for glob.
FILES = (
    "/etc/iptables/rules.v4", "/etc/iptables/rules.v6", "/etc/iptables/ipsets", "/etc/iptables/*.rules",
    "/etc/iptables/*-save", "/etc/sysconfig/iptables", "/etc/sysconfig/ip6tables", "/etc/sysconfig/ipset",
    "/etc/ipset.conf", "/etc/nftables.conf", "/etc/sysconfig/nftables.conf", "/etc/nftables/*.nft",
    "/etc/nftables.d/*.nft", "/var/lib/iptables/*-save", "/var/lib/ip6tables/*-save",
)  # fmt: skip

_SAVED_TABLE = re.compile(r"\*(\S+)$")
_SAVED_CHAIN = re.compile(r":(\S+) \S+")
_NFT_TABLE = re.compile(r"(?:add )?table (\S+) ([^\s{;]+)")
_NFT_CHAIN = re.compile(r"chain ([^\s{]+)\s*\{")
_IPSET = re.compile(r"create (\S+) ")


class SavedRules(NamedTuple):
    """A file, and the objects of kube-proxy that it would bring back."""

    path: str
    objects: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {len(self.objects) - 1} more objects" if len(self.objects) > 1 else ""
        return (
            f"{self.path} holds {self.objects[0]}{more} of kube-proxy, which come back when it is loaded, as at boot: "
            "save the rules anew once kube-proxy's are gone, or take them out of it"
        )


def objects_of_kube_proxy(text: str) -> tuple[str, ...]:
    """Return the names of kube-proxy's chains, sets and tables in a text of iptables-save, ipset save or nft."""
    table = ""
    found: dict[str, None] = {}
    for line in map(str.strip, text.splitlines()):
        saved_table, nft_table = _SAVED_TABLE.match(line), _NFT_TABLE.match(line)
        if saved_table is not None:
            table = saved_table[1]
        elif nft_table is not None:
            table = nft_table[2]
            if ownership.nft_table_by_name(nft_table[1], table).owner == ownership.KUBE_PROXY:
                found[f"table {nft_table[1]} {table}"] = None
        ipset, chain = _IPSET.match(line), _SAVED_CHAIN.match(line) or _NFT_CHAIN.match(line)
        if ipset is not None and ownership.ipset_by_name(ipset[1]).owner == ownership.KUBE_PROXY:
            found[ipset[1]] = None
        owner = ownership.chain_by_name(table, chain[1]) if chain is not None else None
        if chain is not None and owner is not None and owner.owner == ownership.KUBE_PROXY:
            found[chain[1]] = None
    return tuple(found)


def saved(texts: Mapping[str, str]) -> list[SavedRules]:
    """Return those of the files, by path, that hold objects of kube-proxy."""
    judged = [SavedRules(path, objects_of_kube_proxy(text)) for path, text in sorted(texts.items())]
    return [item for item in judged if item.objects]
