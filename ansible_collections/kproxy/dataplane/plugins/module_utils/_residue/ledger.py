# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The ownership ledger: every KUBE- object found on a node, each with its owner and why.

A name often decides. Where it does not, the neighbourhood does:

* KUBE-MARK-MASQ and KUBE-POSTROUTING are kube-proxy's when chains that only kube-proxy makes stand in the same dump and
  nothing says that an old kubelet made them too (KUBE-MARK-DROP marks such a kubelet) and no foreign chain uses them
  (the portmap plugin can be told to mark with KUBE-MARK-MASQ).
* A virtual server is kube-proxy's when its address is on kube-ipvs0, or is a node address at a NodePort of a known
  service; all others belong to somebody else (keepalived, a database VIP).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import ownership
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.dumps import (
    Interface,
    IpSet,
    NftTable,
    VirtualServer,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import Table
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.ownership import Attribution

CHAIN = "chain"
JUMP = "jump"
IPSET = "ipset"
VIRTUAL_SERVER = "virtual-server"
INTERFACE = "interface"
NFT_TABLE = "nft-table"


class Surface(NamedTuple):
    """All iptables tables of one back end and family."""

    backend: str  # 'legacy' or 'nft'
    family: int  # 4 or 6
    tables: tuple[Table, ...]


class Capture(NamedTuple):
    """What was found on a node."""

    surfaces: tuple[Surface, ...] = ()
    ipsets: tuple[IpSet, ...] = ()
    virtual_servers: tuple[VirtualServer, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    nft_tables: tuple[NftTable, ...] = ()


class Entry(NamedTuple):
    """One object of the ledger. `where` is `legacy/ip/nat` and the like for chains and jumps, else empty."""

    owner: str
    kind: str
    where: str
    name: str
    reason: str


ChainId = tuple[str, int, str, str]
"""(back end, family, table, chain)"""


class Ledger(NamedTuple):
    entries: tuple[Entry, ...]
    chains: dict[ChainId, Attribution]
    ipsets: dict[str, Attribution]
    virtual_servers: dict[VirtualServer, Attribution]
    interfaces: dict[str, Attribution]
    nft_tables: dict[NftTable, Attribution]

    def count(self, owner: str) -> int:
        """How many objects this owner has."""
        return sum(1 for entry in self.entries if entry.owner == owner)


def where(surface: Surface, table: str) -> str:
    """Name a table of one back end and family, as the ledger writes it."""
    return f"{surface.backend}/{'ip' if surface.family == 4 else 'ip6'}/{table}"


def _chains(surface: Surface) -> dict[ChainId, Attribution]:
    named: dict[tuple[str, str], Attribution] = {}
    for table in surface.tables:
        for chain in table.chains:
            attribution = ownership.chain_by_name(table.name, chain.name)
            if attribution is not None and not chain.built_in:
                named[table.name, chain.name] = attribution
    has_kube_proxy = any(attribution.owner == ownership.KUBE_PROXY for attribution in named.values())
    has_old_kubelet = any(attribution.owner == ownership.KUBELET for attribution in named.values()) and any(
        chain == "KUBE-MARK-DROP" for _table, chain in named
    )
    users = _foreign_users(surface, named)
    result: dict[ChainId, Attribution] = {}
    for (table_name, chain_name), attribution in named.items():
        if attribution.owner == ownership.EITHER and has_kube_proxy:
            if has_old_kubelet:
                attribution = Attribution(ownership.EITHER, "a kubelet before 1.27 keeps it as well")
            elif users:
                attribution = Attribution(ownership.EITHER, f"still used by {', '.join(sorted(users))}")
            else:
                attribution = Attribution(
                    ownership.KUBE_PROXY, "stands beside chains of kube-proxy, and no old kubelet keeps it"
                )
        result[surface.backend, surface.family, table_name, chain_name] = attribution
    return result


def _foreign_users(surface: Surface, named: dict[tuple[str, str], Attribution]) -> frozenset[str]:
    """Chains of others that jump to one of the shared marking chains; the built-in chains do not count."""
    shared = {key for key, attribution in named.items() if attribution.owner == ownership.EITHER}
    users = set()
    for table in surface.tables:
        built_in = {chain.name for chain in table.chains if chain.built_in}
        for rule in table.rules:
            owner = named.get((table.name, rule.chain))
            if (table.name, rule.target) in shared and rule.chain not in built_in and owner is None:
                users.add(f"{table.name}/{rule.chain}")
    return frozenset(users)


def _virtual_servers(capture: Capture, node_ports: Set[tuple[str, int]]) -> dict[VirtualServer, Attribution]:
    ipvs_addresses = {
        address
        for interface in capture.interfaces
        if interface.name == ownership.IPVS_INTERFACE
        for address in interface.addresses
    }
    node_addresses = {
        address
        for interface in capture.interfaces
        if interface.name != ownership.IPVS_INTERFACE
        for address in interface.addresses
    }
    result: dict[VirtualServer, Attribution] = {}
    for server in capture.virtual_servers:
        if server.address in ipvs_addresses:
            attribution = Attribution(ownership.KUBE_PROXY, f"its address is on {ownership.IPVS_INTERFACE}")
        elif server.address in node_addresses and (server.protocol, server.port) in node_ports:
            attribution = Attribution(ownership.KUBE_PROXY, "a node address at the NodePort of a service")
        else:
            attribution = Attribution(ownership.FOREIGN, "neither on kube-ipvs0 nor a NodePort of a known service")
        result[server] = attribution
    return result


def attribute(capture: Capture, node_ports: Iterable[tuple[str, int]] = ()) -> Ledger:
    """Give every KUBE- object of a capture its owner; sets, virtual servers and nft tables are all listed.

    `node_ports` are the (protocol, port) pairs of services known to the API. Without them a virtual server on a node
    address counts as foreign and is left alone.
    """
    chains: dict[ChainId, Attribution] = {}
    entries: list[Entry] = []
    for surface in capture.surfaces:
        chains.update(_chains(surface))
    for surface in capture.surfaces:
        for table in surface.tables:
            place = where(surface, table.name)
            key = (surface.backend, surface.family, table.name)
            for chain in table.chains:
                found = chains.get(key + (chain.name,))
                if found is not None:
                    entries.append(Entry(found.owner, CHAIN, place, chain.name, found.reason))
            for rule in table.rules:
                found = chains.get(key + (rule.target,)) if rule.target else None
                if found is not None and key + (rule.chain,) not in chains:
                    entries.append(Entry(found.owner, JUMP, place, f"{rule.chain} -> {rule.target}", found.reason))
    ipsets = {item.name: ownership.ipset_by_name(item.name) for item in capture.ipsets}
    servers = _virtual_servers(capture, frozenset(node_ports))
    interfaces = {
        item.name: Attribution(ownership.KUBE_PROXY, "kube-proxy's ipvs mode keeps service addresses on it")
        for item in capture.interfaces
        if item.name == ownership.IPVS_INTERFACE
    }
    nft_tables = {item: ownership.nft_table_by_name(item.family, item.name) for item in capture.nft_tables}
    entries += [Entry(value.owner, IPSET, "", name, value.reason) for name, value in ipsets.items()]
    entries += [Entry(value.owner, VIRTUAL_SERVER, "", str(item), value.reason) for item, value in servers.items()]
    entries += [Entry(value.owner, INTERFACE, "", name, value.reason) for name, value in interfaces.items()]
    entries += [
        Entry(value.owner, NFT_TABLE, "", f"{item.family} {item.name}", value.reason)
        for item, value in nft_tables.items()
    ]
    return Ledger(tuple(entries), chains, ipsets, servers, interfaces, nft_tables)
