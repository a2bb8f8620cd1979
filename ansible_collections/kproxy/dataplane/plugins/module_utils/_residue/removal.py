# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Plan the removal of one or more owners' objects, and predict what remains.

Per iptables table there is one text for `iptables-restore --noflush`, so that each table changes in one transaction:
first every chain is emptied, then what jumps to it is unlinked, then it is deleted. Deleting chain by chain fails
with "Too many links", and flushing a table would take foreign rules (and ssh) along.

The order of the whole: iptables rules, then ipsets (one that a rule names cannot be destroyed), then IPVS virtual
servers, then kube-ipvs0, then kube-proxy's nftables tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import ownership
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.dumps import NftTable, VirtualServer
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.forward_walk import DROP, Packet, outcomes
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import Rule, Table, render
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.ledger import Capture, Ledger, Surface, where

REMOVABLE_OWNERS = (ownership.KUBE_PROXY, ownership.KUBELET, ownership.POLICY_AGENT, ownership.EITHER)


class TableRestore(NamedTuple):
    """Input for `iptables-restore --noflush` that changes one table."""

    backend: str
    family: int
    table: str
    chains: tuple[str, ...]
    unlinked: tuple[Rule, ...]

    @property
    def text(self) -> str:
        lines = ["*" + self.table]
        # Naming a user chain under --noflush empties it; a built-in chain is never named here.
        lines += [f":{chain} - [0:0]" for chain in self.chains]
        lines += [rule.deletion for rule in self.unlinked]
        lines += [f"-X {chain}" for chain in self.chains]
        lines.append("COMMIT")
        return "".join(line + "\n" for line in lines)


def restoration(surface: Surface, restore: TableRestore, on_top: bool = False) -> str:
    """Return the inverse of one table's change, for `iptables-restore --noflush`, from the state before it.

    Jumps go back to where they stood; `on_top` puts them first instead, for a chain that has lost rules meanwhile.
    """
    (table,) = (item for item in surface.tables if item.name == restore.table)
    lines = ["*" + restore.table]
    lines += [f":{chain} - [0:0]" for chain in restore.chains]
    lines += [rule.text for rule in table.rules if rule.chain in restore.chains]
    positions: Counter[str] = Counter()
    jumps = []
    for rule in table.rules:
        positions[rule.chain] += 1
        if rule in restore.unlinked:
            jumps.append((rule, positions[rule.chain]))
    for rule, position in reversed(jumps) if on_top else jumps:
        _add, _chain, rest = rule.text.split(" ", 2)
        lines.append(f"-I {rule.chain} {1 if on_top else position} {rest}")
    lines.append("COMMIT")
    return "".join(line + "\n" for line in lines)


class Removal(NamedTuple):
    """Everything to do, in order. `warnings` are for the operator; `kept` says what had to stay and why."""

    restores: tuple[TableRestore, ...] = ()
    ipsets: tuple[str, ...] = ()
    virtual_servers: tuple[VirtualServer, ...] = ()
    interfaces: tuple[str, ...] = ()
    nft_tables: tuple[NftTable, ...] = ()
    kept: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.restores or self.ipsets or self.virtual_servers or self.interfaces or self.nft_tables)

    def describe(self) -> list[str]:
        """One line per object that goes, for people and for `--diff`."""
        lines: list[str] = []
        for restore in self.restores:
            place = f"{restore.backend}/{'ip' if restore.family == 4 else 'ip6'}/{restore.table}"
            lines += [f"chain {place} {chain}" for chain in restore.chains]
            lines += [f"rule {place} {rule.text}" for rule in restore.unlinked]
        lines += [f"ipset {name}" for name in self.ipsets]
        lines += [f"virtual server {server}" for server in self.virtual_servers]
        lines += [f"interface {name}" for name in self.interfaces]
        lines += [f"nft table {table.family} {table.name}" for table in self.nft_tables]
        return lines


def _table_restore(surface: Surface, table: Table, ledger: Ledger, owners: Set[str]) -> TableRestore:
    key = (surface.backend, surface.family, table.name)
    doomed = tuple(
        chain.name
        for chain in table.chains
        if key + (chain.name,) in ledger.chains and ledger.chains[key + (chain.name,)].owner in owners
    )
    unlinked = tuple(rule for rule in table.rules if rule.target in doomed and rule.chain not in doomed)
    return TableRestore(surface.backend, surface.family, table.name, doomed, unlinked)


def _remaining_rules(capture: Capture, restores: tuple[TableRestore, ...]) -> list[tuple[str, Rule]]:
    gone = {(item.backend, item.family, item.table): item for item in restores}
    rules: list[tuple[str, Rule]] = []
    for surface in capture.surfaces:
        for table in surface.tables:
            restore = gone.get((surface.backend, surface.family, table.name))
            for rule in table.rules:
                if restore is None or not (rule.chain in restore.chains or rule in restore.unlinked):
                    rules.append((where(surface, table.name), rule))
    return rules


def _warnings(restores: tuple[TableRestore, ...], owners: Set[str]) -> tuple[str, ...]:
    warnings = []
    if ownership.KUBELET in owners:
        if any(restore.chains for restore in restores):
            warnings.append(
                "kubelet makes its chains again within a minute; set makeIPTablesUtilChains: false in its"
                " configuration to keep them away"
            )
        if any(item.table == "filter" and "KUBE-FIREWALL" in item.chains for item in restores):
            warnings.append(
                "filter/KUBE-FIREWALL goes: until it is back, packets from the network to 127.0.0.0/8 are not dropped"
                " where net.ipv4.conf.*.route_localnet is 1"
            )
    return tuple(warnings)


def plan_removal(capture: Capture, ledger: Ledger, owners: Set[str]) -> Removal:
    """Return what to remove so that none of `owners` has an object left.

    Raises ValueError for an owner whose objects are never removed here (ours, foreign).
    """
    refused = sorted(owners - set(REMOVABLE_OWNERS))
    if refused:
        raise ValueError(
            f"objects of {', '.join(refused)} are never removed; choose from {', '.join(REMOVABLE_OWNERS)}"
        )
    planned = [
        _table_restore(surface, table, ledger, owners) for surface in capture.surfaces for table in surface.tables
    ]
    restores = tuple(item for item in planned if item.chains)
    remaining = _remaining_rules(capture, restores)
    ipsets, kept = [], []
    for name, attribution in ledger.ipsets.items():
        if attribution.owner not in owners:
            continue
        users = sorted({f"{place} {rule.chain}" for place, rule in remaining if name in rule.sets})
        if users:
            kept.append(f"ipset {name}: a rule of {', '.join(users)} names it")
        else:
            ipsets.append(name)
    return Removal(
        restores,
        tuple(ipsets),
        tuple(item for item, attribution in ledger.virtual_servers.items() if attribution.owner in owners),
        tuple(name for name, attribution in ledger.interfaces.items() if attribution.owner in owners),
        tuple(item for item, attribution in ledger.nft_tables.items() if attribution.owner in owners),
        tuple(kept),
        _warnings(restores, owners),
    )


def _tables_after(surface: Surface, removal: Removal) -> tuple[Table, ...]:
    gone = {
        item.table: item
        for item in removal.restores
        if (item.backend, item.family) == (surface.backend, surface.family)
    }
    tables = []
    for table in surface.tables:
        restore = gone.get(table.name)
        if restore is not None:
            table = Table(
                table.name,
                tuple(chain for chain in table.chains if chain.name not in restore.chains),
                tuple(
                    rule for rule in table.rules if rule.chain not in restore.chains and rule not in restore.unlinked
                ),
            )
        tables.append(table)
    return tuple(tables)


def surface_after(surface: Surface, removal: Removal) -> str:
    """Predict what iptables-save prints for one back end and family once the removal has run."""
    return render(_tables_after(surface, removal))


def lost_forwarding(capture: Capture, removal: Removal) -> tuple[str, ...]:
    """Name the filter tables that would surely drop forwarded Service traffic after the removal, and do not now.

    Where the rest of the rules may accept it (by an interface or an address that is not known here) nothing is said.
    """
    packet = Packet()
    return tuple(
        f"{where(surface, 'filter')} FORWARD drops forwarded Service traffic once KUBE-FORWARD is gone"
        for surface in capture.surfaces
        if outcomes(surface.tables, packet) != {DROP} and outcomes(_tables_after(surface, removal), packet) == {DROP}
    )
