# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From changes of the service table to the smallest change of our tables. Pure: reads and writes no kernel."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping

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
    SlotSpace,
    row_elements,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import endpoint_value, slot_key
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import (
    ABSENT,
    FoundTable,
    Held,
    Mirror,
    about_text,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import WHOLE, Placement
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.slots import assign
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    Key,
    SetName,
    Transaction,
)

_GOTO = "goto "
_MISSING: Held = b"missing"
_Claims = dict[SetName, set[Key]]


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
        self._needed: dict[SetName, dict[Key, int]] = {}
        self._affinity = AffinityBooks(place.table, self.mirror, self._chains)
        self._rules: dict[int, NodeRules] = {}

    # ------------------------------------------------------------------ plans

    def plan_all(self, table: ServiceTable, found: Mapping[int, FoundTable]) -> Plan:
        """Return what makes the tables found in the kernel be as the service table says.

        Structure that is as we left it is kept, elements that are right are not written, everything else goes.
        """
        plan = Plan()
        self._needed = {}
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
        claims: _Claims = {}
        for row in table.frontends.values():
            self._put_row(None, row, plan, claims)
        for set_name, needed in self._needed.items():
            self._settle_shared(set_name, needed, plan.transaction)
        for set_name in self._element_sets():
            claimed: set[Key] | dict[Key, int] = claims.get(set_name, set())
            if set_name.name in (names.CLUSTER_IPS, names.HAIRPIN):
                claimed = self._needed.get(set_name, {})
            unclaimed = [key for key in self.mirror.of(set_name) if key not in claimed]
            if unclaimed:
                plan.transaction.deletes.setdefault(set_name, []).extend(unclaimed)
        plan.pins = self._affinity.all_pins()
        return plan

    def plan(self, table: ServiceTable, delta: TableDelta) -> Plan:
        """Return what a change of the service table asks for; the cost follows the change."""
        plan = Plan()
        if delta.rules_changed:
            self._plan_rules(table, plan)
        ports: set[tuple[int, ServicePortName]] = set()
        shared: dict[SetName, set[Key]] = {}
        for key, before in delta.before.items():
            row = table.frontends.get(key)
            for set_name, shared_key in self._put_row(before, row, plan, None):
                shared.setdefault(set_name, set()).add(shared_key)
            for either in (before, row):
                if either is not None and either.affinity_seconds:
                    ports.add((key.family, either.service_port))
        for set_name, keys in shared.items():
            self._settle_shared(set_name, keys, plan.transaction)
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

    def _need_chain(self, family: int, name: str, plan: Plan) -> None:
        if not structure.is_pick_chain(name):
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
        return ensure_text(
            self.place.table, family, structure.sets(family), chains, structure.interval_elements(rules)
        )

    # ------------------------------------------------------------------ rows

    def _put_row(
        self, before: Frontend | None, row: Frontend | None, plan: Plan, claims: _Claims | None
    ) -> list[tuple[SetName, Key]]:
        """Plan one row, from what it was to what it is, either of which may be nothing.

        Returns the shared elements whose count of users changed; they are settled when all rows are planned.
        claims: where to note which elements rows need, if what nobody claims is to go.
        """
        new = row_elements(row) if row is not None else NOTHING
        old = row_elements(before) if before is not None else NOTHING
        either = row if row is not None else before
        if either is None:
            raise AssertionError("a change is of a row that was or is")
        family = either.key.family
        self._put_own(family, old, new, row, plan, claims)
        transaction = plan.transaction
        set_names = self._set_names[family]
        for space in new.slots:
            self._put_slots(set_names[space.map_name], space, transaction, claims)
        if old.slots:
            kept = {space[:3] for space in new.slots}
            for space in old.slots:
                if space[:3] not in kept:
                    self._put_slots(set_names[space.map_name], space._replace(endpoints=()), transaction, claims)
        shared = []
        for change, items in ((1, new.shared), (-1, old.shared)):
            for name, key in items:
                set_name = set_names[name]
                needed = self._needed.setdefault(set_name, {})
                needed[key] = needed.get(key, 0) + change
                shared.append((set_name, key))
        return shared

    def _put_own(
        self,
        family: int,
        old: RowElements,
        new: RowElements,
        row: Frontend | None,
        plan: Plan,
        claims: _Claims | None,
    ) -> None:
        set_names, chains, transaction = self._set_names[family], self._chains[family], plan.transaction
        comment = names.service_port_comment(row.service_port) if row is not None else ""
        for name, key, verdict in new.own:
            set_name = set_names[name]
            mirror = self.mirror.of(set_name)
            wanted: Held = (verdict, comment) if verdict is not None else None
            held = mirror.get(key, _MISSING) if mirror else _MISSING
            if held != wanted:
                if held is not _MISSING:
                    transaction.delete(set_name, key)
                transaction.add(set_name, key, verdict, comment if verdict is not None else None)
                if verdict is not None and verdict.startswith(_GOTO) and verdict[len(_GOTO) :] not in chains:
                    self._need_chain(family, verdict[len(_GOTO) :], plan)
            if claims is not None and mirror:
                claims.setdefault(set_name, set()).add(key)
        if old.own:
            kept = {(name, key) for name, key, _verdict in new.own}
            for name, key, _verdict in old.own:
                if (name, key) not in kept and key in self.mirror.of(set_names[name]):
                    transaction.delete(set_names[name], key)

    def _put_slots(self, set_name: SetName, space: SlotSpace, transaction: Transaction, claims: _Claims | None) -> None:
        mirror = self.mirror.of(set_name)
        if not mirror:
            if space.endpoints:
                transaction.adds.setdefault(set_name, []).extend(
                    [
                        (slot_key(space.prefix, slot), endpoint_value(endpoint), None)
                        for slot, endpoint in enumerate(space.endpoints, space.first)
                    ]
                )
            return
        prefix, slot = space.prefix, space.first
        held: list[bytes] = []
        value = mirror.get(slot_key(prefix, slot))
        while isinstance(value, bytes):
            held.append(value)
            slot += 1
            value = mirror.get(slot_key(prefix, slot))
        wanted = [endpoint_value(endpoint) for endpoint in space.endpoints]
        slots = assign(held, wanted)
        first, kept = space.first, len(held)
        added: list[Element] = []
        for index, value in enumerate(slots):
            key = slot_key(prefix, first + index)
            if index >= kept:
                added.append((key, value, None))
            elif held[index] != value:
                transaction.delete(set_name, key)
                added.append((key, value, None))
            if claims is not None:
                claims.setdefault(set_name, set()).add(key)
        # With claims, what no row claims is deleted in the end; an element can be deleted only once.
        if claims is None:
            for index in range(len(slots), kept):
                transaction.delete(set_name, slot_key(prefix, first + index))
        if added:
            transaction.adds.setdefault(set_name, []).extend(added)

    def _settle_shared(self, set_name: SetName, keys: Iterable[Key], transaction: Transaction) -> None:
        """Add shared elements that are needed now, delete those that nobody needs any more."""
        needed, held = self._needed[set_name], self.mirror.of(set_name)
        added: list[Element] = []
        for key in list(keys):
            if needed[key] > 0:
                if key not in held:
                    added.append((key, None, None))
            else:
                del needed[key]
                if key in held:
                    transaction.delete(set_name, key)
        if added:
            transaction.adds.setdefault(set_name, []).extend(added)

    def _element_sets(self) -> list[SetName]:
        skipped = (names.POD_ADDRESSES, names.NODE_PORT_ADDRESSES, names.SERVICE_CIDRS, names.ABOUT)
        return [
            set_name
            for of_family in self._set_names.values()
            for name, set_name in of_family.items()
            if name not in skipped
        ]


#: The one key of the `about` set: a mark of 1, in the byte order of the host.
_ABOUT_KEY = (1).to_bytes(4, sys.byteorder)


def _same_layout(found: FoundTable) -> bool:
    return found.about.startswith("layout %d," % names.LAYOUT)
