# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From changes of the service table to the smallest change of our tables. Pure: reads and writes no kernel."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterable, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import Frontend, ServicePortName
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import (
    NodeRules,
    ServiceTable,
    TableDelta,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names, structure
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.affinity_books import AffinityBooks
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.declaration import (
    delete_table_text,
    delete_text,
    ensure_text,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.elements import (
    NOTHING,
    RowElements,
    row_elements,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.first_fill import fill
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import (
    ABSENT,
    FoundTable,
    Mirror,
    about_text,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import WHOLE, Placement
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.set_change import FamilyChange, SetChange
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Key,
    SetName,
    Transaction,
)

_GOTO = "goto "
_NOT_FROM_ROWS = (names.POD_ADDRESSES, names.NODE_PORT_ADDRESSES, names.SERVICE_CIDRS, names.ABOUT)


class Planner:
    """Keeps the books of our tables: what is in the kernel, who needs which shared element, which chains there are."""

    def __init__(self, families: Iterable[int], place: Placement = WHOLE) -> None:
        self.families = tuple(families)
        self.place = place
        self.mirror = Mirror()
        self.about: dict[int, str] = dict.fromkeys(self.families, "")
        self._chains: dict[int, set[str]] = {family: set() for family in self.families}
        self._set_names = {
            family: {item.name: SetName(family, item.name) for item in structure.sets(family)}
            for family in self.families
        }
        self._needed = self._nobody()
        self._affinity = AffinityBooks(place.table, self.mirror, self._chains)
        self._rules: dict[int, NodeRules] = {}

    # ------------------------------------------------------------------ plans

    def plan_all(self, table: ServiceTable, found: Mapping[int, FoundTable]) -> Plan:
        """Return what makes the tables found in the kernel be as the service table says.

        Structure that is as we left it is kept, elements that are right are not written, everything else goes.
        """
        plan = Plan()
        self._needed = self._nobody()
        self._rules = dict(table.rules)
        self.mirror = Mirror()
        for family in self.families:
            # Sets cannot change their declaration: a table of another layout is made anew, so nothing of it counts.
            adopted = found[family] if _same_layout(found[family]) else ABSENT
            self.mirror.elements.update(adopted.elements)
            self._chains[family] = set(adopted.chains)
            self.about[family] = adopted.about
        # Owners first: what they own is part of the structure that is compared as a whole.
        self._affinity = AffinityBooks(self.place.table, self.mirror, self._chains)
        self._affinity.adopt(table, plan)
        for family in self.families:
            self._plan_structure(family, found[family], plan)
        changes = {family: self._change(family, whole=True) for family in self.families}
        rows: Iterable[Frontend] = table.frontends.values()
        if not any(self.mirror.elements.values()):
            rows = fill(rows, changes, self._needed, lambda family, verdict: self._need_chain(family, verdict, plan))
        for row in rows:
            family, new = row.key.family, row_elements(row)
            self._put_own(family, new, changes[family], plan)
            for map_name, prefix, first, endpoints in new.slots:
                changes[family][map_name].put_slots(prefix, first, endpoints)
            self._count(family, new.shared, 1)
        for family, change in changes.items():
            for name, needed in self._needed[family].items():
                change[name].put_keys(needed)
            for name in self._set_names[family]:
                if name not in _NOT_FROM_ROWS:
                    change[name].remove_unclaimed()
            change.enter(plan.transaction)
        plan.pins = self._affinity.all_pins()
        return plan

    def plan(self, table: ServiceTable, delta: TableDelta) -> Plan:
        """Return what a change of the service table asks for; the cost follows the change."""
        plan = Plan()
        if delta.rules_changed:
            self._plan_rules(table, plan)
        ports: set[tuple[int, ServicePortName]] = set()
        changes = {family: self._change(family, whole=False) for family in self.families}
        shared: dict[tuple[int, str], set[Key]] = {}
        for key, before in delta.before.items():
            family, row = key.family, table.frontends.get(key)
            new = row_elements(row) if row is not None else NOTHING
            old = row_elements(before) if before is not None else NOTHING
            self._put_own(family, new, changes[family], plan)
            _remove_own(old, new, changes[family])
            _move_slots(old, new, changes[family])
            gained, lost = set(new.shared).difference(old.shared), set(old.shared).difference(new.shared)
            self._count(family, gained, 1)
            self._count(family, lost, -1)
            for name, shared_key in (*gained, *lost):
                shared.setdefault((family, name), set()).add(shared_key)
            for either in (before, row):
                if either is not None and either.affinity_seconds:
                    ports.add((family, either.service_port))
        for (family, name), keys in shared.items():
            self._settle_shared(family, name, keys, changes[family][name])
        for change in changes.values():
            change.enter(plan.transaction)
        self._affinity.plan(table, ports, plan)
        return plan

    def accept(self, plan: Plan) -> None:
        """Take over what a committed plan did. Chains and owners were noted when it was made."""
        self.mirror.accept(plan.transaction)

    def fingerprint(self, family: int) -> str:
        """Return a digest of the text that the structure of a family is made from, chains per count left out."""
        digest = hashlib.sha256(self._base_text(family).encode())
        for owned in self._affinity.objects(family):
            digest.update(ensure_text(self.place.table, family, owned.sets, owned.chains, {}).encode())
        return digest.hexdigest()

    def record_about(self, family: int, digest: str, transaction: Transaction) -> None:
        """Add to a transaction what is recorded about a family whose structure has the given digest."""
        text = about_text(self.fingerprint(family), digest)
        if text == self.about[family]:
            return
        name = self._set_names[family][names.ABOUT]
        if self.about[family]:
            transaction.delete(name, _ABOUT_KEY)
        transaction.add(name, _ABOUT_KEY, None, text)
        self.about[family] = text

    # ------------------------------------------------------------------ structure

    def _plan_structure(self, family: int, found: FoundTable, plan: Plan) -> None:
        if found.exists and found.about == about_text(self.fingerprint(family), found.digest):
            return
        text = delete_table_text(self.place.table, family) if found.exists and not _same_layout(found) else ""
        declared, chains = structure.sets(family), structure.base_chains(family, self._rules[family], self.place)
        for owned in self._affinity.objects(family):
            declared, chains = declared + owned.sets, chains + owned.chains
        known = {item.name for item in chains}
        for name in sorted(self._chains[family] - known):
            if structure.is_pick_chain(name):
                chains += [item for item in structure.pick_chains(family, name) if item.name not in known]
                known.update(item.name for item in chains)
        contents = structure.interval_elements(self._rules[family])
        text += ensure_text(self.place.table, family, declared, chains, contents)
        # Chains and sets of Services that lost their affinity, or that somebody else put into our table.
        wanted = {item.name for item in declared}
        strange_sets = sorted(found.sets - wanted) if _same_layout(found) else []
        plan.retired += delete_text(self.place.table, family, sorted(self._chains[family] - known), strange_sets)
        self._chains[family] = known
        plan.transaction.structure += text
        plan.restructured.add(family)
        plan.rebuilt.add(family)

    def _plan_rules(self, table: ServiceTable, plan: Plan) -> None:
        for family in self.families:
            rules = table.rules[family]
            if rules != self._rules.get(family):
                self._rules[family] = rules
                chains = structure.base_chains(family, rules, self.place)
                contents = structure.interval_elements(rules)
                plan.transaction.structure += ensure_text(self.place.table, family, [], chains, contents)
                plan.restructured.add(family)

    def _need_chain(self, family: int, verdict: str, plan: Plan) -> None:
        """Make the chain that a verdict goes to, if it is one per count of endpoints and not there."""
        name = verdict[len(_GOTO) :]
        if not verdict.startswith(_GOTO) or name in self._chains[family] or not structure.is_pick_chain(name):
            return
        declared = [item for item in structure.pick_chains(family, name) if item.name not in self._chains[family]]
        # A chain must exist before a rule can name it: the pick chain comes first.
        declared.reverse()
        plan.transaction.structure += ensure_text(self.place.table, family, [], declared, {})
        plan.restructured.add(family)
        self._chains[family].update(item.name for item in declared)

    def _base_text(self, family: int) -> str:
        rules = self._rules[family]
        chains = structure.base_chains(family, rules, self.place)
        return ensure_text(self.place.table, family, structure.sets(family), chains, structure.interval_elements(rules))

    # ------------------------------------------------------------------ rows

    def _change(self, family: int, whole: bool) -> FamilyChange:
        return FamilyChange(self._set_names[family], self.mirror, whole)

    def _put_own(self, family: int, new: RowElements, change: FamilyChange, plan: Plan) -> None:
        """Ask for the elements that only one row has."""
        for name, element in new.own:
            change[name].put(element)
            verdict = element[1]
            if isinstance(verdict, str) and verdict not in change.verdicts:
                change.verdicts.add(verdict)
                self._need_chain(family, verdict, plan)

    def _nobody(self) -> dict[int, dict[str, dict[Key, int]]]:
        """Return the counts of users of shared elements, by family and set, before any is counted."""
        return {family: {name: {} for name in (names.CLUSTER_IPS, names.HAIRPIN)} for family in self.families}

    def _count(self, family: int, shared: Iterable[tuple[str, Key]], difference: int) -> None:
        """Note that shared elements have so many more users; they are settled when all rows have been planned."""
        for name, key in shared:
            needed = self._needed[family][name]
            needed[key] = needed.get(key, 0) + difference

    def _settle_shared(self, family: int, name: str, keys: Collection[Key], change: SetChange) -> None:
        """Ask for shared elements that are needed now, and for those to go that nobody needs any more."""
        needed = self._needed[family][name]
        change.put_keys([key for key in keys if needed[key]])
        for key in keys:
            if not needed[key]:
                del needed[key]
                change.remove(key)


def _remove_own(old: RowElements, new: RowElements, change: FamilyChange) -> None:
    """Ask for what only this row had and has no more to go."""
    if old.own:
        kept = {(name, element[0]) for name, element in new.own}
        for name, (key, _verdict, _comment) in old.own:
            if (name, key) not in kept:
                change[name].remove(key)


def _move_slots(old: RowElements, new: RowElements, change: FamilyChange) -> None:
    """Ask for the endpoints of a row that came, went or have to move."""
    before = {space[:3]: space.endpoints for space in old.slots}
    for space in new.slots:
        map_name, prefix, first, endpoints = space
        change[map_name].move_slots(prefix, first, before.pop(space[:3], ()), endpoints)
    for (map_name, prefix, first), endpoints in before.items():
        change[map_name].move_slots(prefix, first, endpoints, ())


#: The one key of the `about` set: a mark of 1, in the byte order of the host.
_ABOUT_KEY = (1).to_bytes(4, sys.byteorder)


def _same_layout(found: FoundTable) -> bool:
    return found.about.startswith("layout %d," % names.LAYOUT)
