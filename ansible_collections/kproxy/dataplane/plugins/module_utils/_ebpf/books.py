# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What we know the maps to hold, per service port, and the plans made from it.

Planning a change costs as much as the service ports it touches. On start, and in an audit, the whole is compared with
what was read from the kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout, maglev
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.entries import (
    PRESENT,
    PortEntries,
    PortKey,
    port_entries,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.numbers import Numbers
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan, diff_maps
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    Frontend,
    FrontendKey,
    ServicePortName,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable, TableDelta

#: Maps whose whole content the books decide, without the family digit.
OWNED = ("frontends", "slots", "members", "ranges", "cluster_ips")
#: Maglev tables, theirs too. What is live of a table is its head alone, the digest of what it was made from.
TABLES = ("tables4", "tables6")

LiveMaps = Mapping[str, dict[bytes, bytes]]


class Replan(NamedTuple):
    """A plan and the books' state after it; `accept` it once the kernel has taken the plan.

    unpinned: there may be pins that count no more after it.
    """

    plan: MapPlan
    ports: dict[PortKey, PortEntries | None]
    unpinned: bool = False


class Books:
    """Entries by service port, numbers, and the use of cluster IPs. table_size: of Maglev tables, 0 for none."""

    def __init__(self, table_size: int = 0) -> None:
        self.table_size = table_size
        self.numbers = Numbers()
        self.ports: dict[PortKey, PortEntries] = {}
        self._cluster_ips: dict[bytes, int] = {}
        self._sizes: dict[str, int] = {}

    # -- the whole --------------------------------------------------------------------------------------------------

    def adopt(self, table: ServiceTable, live: LiveMaps, next_service: int, former: LiveMaps | None = None) -> MapPlan:
        """Take over what the maps hold and return the plan that makes it the table's.

        Numbers that one service port alone uses are kept, slots stay where they are. former: frontends of the maps
        that these are to replace; only their numbers are read.
        """
        self.numbers = Numbers(next_service)
        self.numbers.adopt([*_holders(table, live), *_holders(table, former or {})])
        current = _live_sets(live)
        self.ports = {}
        for key, rows in group(table.frontends.values()).items():
            self.ports[key] = port_entries(rows, self.numbers.of(key[0]), current.get(key[1], {}), self.table_size)
        self._cluster_ips = {}
        for entries in self.ports.values():
            for ip in entries.cluster_ips:
                self._cluster_ips[ip] = self._cluster_ips.get(ip, 0) + 1
        wanted = self.wanted(table.config.families)
        self._sizes = {name: len(content) for name, content in wanted.items()}
        for family in table.config.families:
            own = (entries for (_name, of), entries in self.ports.items() if of == family)
            self._sizes["tables%d" % family] = sum(len(entries.balanced) for entries in own)
        plan = diff_maps(wanted, live)
        self._plan_tables(plan, live)
        return plan

    def _plan_tables(self, plan: MapPlan, live: LiveMaps) -> None:
        """Plan the tables that differ from what is live; a table is computed only where its digest tells so."""
        stale = {name: set(live.get(name, ())) for name in TABLES}
        for (_name, family), entries in self.ports.items():
            name = "tables%d" % family
            for number in entries.balanced:
                key, slots = layout.table_key(number), entries.sets[number]
                stale[name].discard(key)
                if live.get(name, {}).get(key) != maglev.inputs_digest(slots, self.table_size):
                    plan.put(name, key, maglev.table_value(slots, self.table_size))
        for name, keys in stale.items():
            for key in keys:
                plan.remove(name, key)

    def wanted(self, families: Iterable[int] = (4, 6)) -> dict[str, dict[bytes, bytes]]:
        """Return the content of all owned maps."""
        maps: dict[str, dict[bytes, bytes]] = {"%s%d" % (name, family): {} for name in OWNED for family in families}
        frontends, slots, members, ranges = (
            {family: maps["%s%d" % (name, family)] for family in families} for name in OWNED[:4]
        )
        for (_name, family), entries in self.ports.items():
            frontends[family].update(entries.frontends)
            slots[family].update(_slots(entries))
            if entries.members:
                members[family].update(entries.members)
            if entries.ranges:
                ranges[family].update(dict.fromkeys(entries.ranges, PRESENT))
        for ip in self._cluster_ips:
            maps["cluster_ips%d" % (4 if len(ip) == 4 else 6)][ip] = PRESENT
        return maps

    @property
    def cluster_ips(self) -> Collection[bytes]:
        """The cluster IPs in use, of either family."""
        return self._cluster_ips.keys()

    def pinned(self, family: int) -> dict[int, PortEntries]:
        """Return the entries of the service ports of a family that pin clients, by their number."""
        return {
            entries.service: entries for (_name, of), entries in self.ports.items() if of == family and entries.affinity
        }

    # -- a change ---------------------------------------------------------------------------------------------------

    def replan(self, table: ServiceTable, delta: TableDelta) -> Replan:
        """Return the plan for the service ports that a change touched. The books stay as they are until `accept`."""
        touched = {
            (row.service_port.namespace, row.service_port.name)
            for key, before in delta.before.items()
            for row in (before, table.frontends.get(key))
            if row is not None
        }
        rows = group(row for service in touched for row in table.frontends_of(service))
        names = set(rows)
        for before in delta.before.values():
            if before is not None:
                names.add((before.service_port, before.key.family))
        plan = MapPlan()
        ports: dict[PortKey, PortEntries | None] = {}
        ip_use: dict[bytes, int] = {}
        unpinned = False
        for key in sorted(names):
            old = self.ports.get(key)
            new = None
            if key in rows:
                current = old.sets if old else {}
                new = port_entries(rows[key], self.numbers.of(key[0]), current, self.table_size)
            ports[key] = new
            _diff_port(plan, key[1], old, new)
            _diff_tables(plan, key[1], old, new, self.table_size)
            if old is not None and old.affinity:
                unpinned = unpinned or new is None or not new.affinity or not old.members.keys() <= new.members.keys()
            for entries, change in ((old, -1), (new, 1)):
                for ip in entries.cluster_ips if entries else ():
                    ip_use[ip] = ip_use.get(ip, 0) + change
        for ip, change in ip_use.items():
            held = self._cluster_ips.get(ip, 0)
            name = "cluster_ips%d" % (4 if len(ip) == 4 else 6)
            if not held and held + change:
                plan.put(name, ip, PRESENT)
            elif held and not held + change:
                plan.remove(name, ip)
        return Replan(plan, ports, unpinned)

    def accept(self, done: Replan) -> None:
        """Enter a committed plan."""
        self._sizes = self.sizes_after(done)
        for key, entries in done.ports.items():
            old = self.ports.pop(key, None)
            for ip in old.cluster_ips if old else ():
                self._cluster_ips[ip] -= 1
                if not self._cluster_ips[ip]:
                    del self._cluster_ips[ip]
            if entries is None:
                if not any((key[0], family) in self.ports for family in (4, 6)):
                    self.numbers.release(key[0])
                continue
            self.ports[key] = entries
            for ip in entries.cluster_ips:
                self._cluster_ips[ip] = self._cluster_ips.get(ip, 0) + 1

    def sizes(self) -> dict[str, int]:
        """Return how many elements each owned map must hold, as of the last adopt() or accept()."""
        return dict(self._sizes)

    def sizes_after(self, replan: Replan) -> dict[str, int]:
        """Return how many elements the maps must hold once a plan is accepted; costs as much as the plan."""
        counts = dict(self._sizes)
        for key, new in replan.ports.items():
            for entries, sign in ((self.ports.get(key), -1), (new, 1)):
                if entries is not None:
                    _count(counts, key[1], entries, sign)
        for name in ("cluster_ips4", "cluster_ips6"):
            counts[name] = (
                counts.get(name, 0) + len(replan.plan.upserts.get(name, ())) - len(replan.plan.deletes.get(name, ()))
            )
        return counts


def _count(counts: dict[str, int], family: int, entries: PortEntries, sign: int) -> None:
    for name, count in (
        ("frontends", len(entries.frontends)),
        ("members", len(entries.members)),
        ("ranges", len(entries.ranges)),
        ("slots", sum(map(len, entries.sets.values()))),
        ("tables", len(entries.balanced)),
    ):
        full = "%s%d" % (name, family)
        counts[full] = counts.get(full, 0) + sign * count


def group(rows: Iterable[Frontend]) -> dict[PortKey, list[Frontend]]:
    """Return rows by service port and family."""
    found: dict[PortKey, list[Frontend]] = {}
    for row in rows:
        found.setdefault((row.service_port, row.key.family), []).append(row)
    return found


def _slots(entries: PortEntries) -> dict[bytes, bytes]:
    return {
        layout.slot_key(number, slot): held for number, slots in entries.sets.items() for slot, held in enumerate(slots)
    }


def _present(keys: Iterable[bytes]) -> dict[bytes, bytes]:
    return dict.fromkeys(keys, PRESENT)


def _diff_port(plan: MapPlan, family: int, old: PortEntries | None, new: PortEntries | None) -> None:
    for name, before, after in (
        ("frontends", old.frontends if old else {}, new.frontends if new else {}),
        ("slots", _slots(old) if old else {}, _slots(new) if new else {}),
        ("members", old.members if old else {}, new.members if new else {}),
        ("ranges", _present(old.ranges if old else ()), _present(new.ranges if new else ())),
    ):
        full = "%s%d" % (name, family)
        for key, value in after.items():
            if before.get(key) != value:
                plan.put(full, key, value)
        for key in before:
            if key not in after:
                plan.remove(full, key)


def _diff_tables(plan: MapPlan, family: int, old: PortEntries | None, new: PortEntries | None, table_size: int) -> None:
    name = "tables%d" % family
    held = {number: list(map(maglev.identity, old.sets[number])) for number in old.balanced} if old else {}
    for number in new.balanced if new else ():
        slots = new.sets[number] if new else ()
        if held.pop(number, None) != list(map(maglev.identity, slots)):
            plan.put(name, layout.table_key(number), maglev.table_value(slots, table_size))
    for number in held:
        plan.remove(name, layout.table_key(number))


def _holders(table: ServiceTable, live: LiveMaps) -> list[tuple[int, ServicePortName | None]]:
    found: list[tuple[int, ServicePortName | None]] = []
    for family in (4, 6):
        for key, value in live.get("frontends%d" % family, {}).items():
            ip, protocol, port = layout.unpack_frontend_key(key)
            row = table.frontends.get(FrontendKey(family, ip, protocol, port))
            found.append((layout.service_number(value), row.service_port if row else None))
    return found


def _live_sets(live: LiveMaps) -> dict[int, dict[int, tuple[bytes, ...]]]:
    found: dict[int, dict[int, tuple[bytes, ...]]] = {}
    for family in (4, 6):
        slots: dict[int, list[tuple[int, bytes]]] = {}
        for key, value in live.get("slots%d" % family, {}).items():
            number, slot = layout.unpack_slot_key(key)
            slots.setdefault(number, []).append((slot, value))
        found[family] = {number: _ordered(held) for number, held in slots.items()}
    return found


def _ordered(held: Sequence[tuple[int, bytes]]) -> tuple[bytes, ...]:
    return tuple(value for _slot, value in sorted(held))
