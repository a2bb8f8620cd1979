# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The nftables dataplane: plans by `_nftables`, commits by nft (structure) and netlink (elements)."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError, FrontendState
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable, TableDelta
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.element_decoding import TimedElement
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import ElementError, KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand, NftError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.structure import structure_digests
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.declaration import delete_table_text
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import read_frontend_key
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import (
    ABSENT,
    FoundTable,
    Held,
    Mirror,
    element_sets,
    interval_sets,
    is_about_structure,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import WHOLE, Placement
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import CarriedPins, Pins, Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.planner import Planner
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.programmed import programmed
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Key, SetName, Transaction

_FAMILIES = (4, 6)
_CHAIN = "chain "
_SET = "set "
_MEMBERS = "members"
#: A pin can be learned by a connection that was picking its endpoint while we removed it: look again until none is.
_PIN_ROUNDS = 10


class NftablesBackend:
    """Our tables in the current network namespace: `ip kproxy` and `ip6 kproxy`, or those of a canary."""

    name = "nftables"

    def __init__(
        self, families: tuple[int, ...] = _FAMILIES, nft: NftCommand | None = None, place: Placement = WHOLE
    ) -> None:
        self.planner = Planner(families, place)
        self._place = place
        self._families = families
        self._nft = nft if nft is not None else NftCommand()
        self._kernel = Nfnetlink(place.table)
        self._known_generation: int | None = None
        self._to_make_anew: set[int] = set()

    @property
    def port(self) -> int:
        """The netlink port of our commits, to tell them from other people's changes."""
        return self._kernel.port

    def plan_all(self, table: ServiceTable) -> Plan:
        """Read our tables and return what makes them be as the service table says."""
        self._known_generation = self._kernel.generation()
        found = {family: self._read(family) for family in self._families}
        for family in self._to_make_anew:
            found[family] = found[family]._replace(about="")
        return self.planner.plan_all(table, found)

    def plan(self, table: ServiceTable, delta: TableDelta) -> Plan:
        """Return what one change asks for."""
        return self.planner.plan(table, delta)

    def commit(self, plan: Plan) -> None:
        """Make the change: structure first, then every element in one transaction, then what nobody names any more.

        Pins that come to count for another endpoint set are there before an element leads to it.

        Raises CommitError.
        """
        try:
            if plan.transaction.structure:
                self._load_structure(plan)
            if not plan.retired:
                self._record_structure(plan, plan.transaction)
            known, self._known_generation = self._known_generation, None
            for carried in plan.carried:
                self._carry_pins(carried)
            if plan.transaction.size:
                result = self._kernel.commit(plan.transaction)
                if known is not None and not result.foreign and result.generation == known + result.batches:
                    known = result.generation
                else:
                    known = None
            self.planner.accept(plan)
        except ElementError as error:
            raise CommitError(str(error), _frontend_of(error)) from error
        except KernelError as error:
            raise CommitError(str(error)) from error
        try:
            if plan.retired:
                self._retire(plan)
            # nft and the removal of pins make generations that are ours but that nobody numbered for us.
            if not (plan.transaction.structure or plan.carried or plan.retired or plan.pins):
                self._known_generation = known
            for pins in plan.pins:
                self._drop_stale_pins(pins)
        except KernelError as error:
            raise CommitError(
                f"the change is in force, but not all it replaced is removed: {error}", None, True
            ) from error

    def preview(self, plan: Plan) -> tuple[Mapping[FrontendKey, FrontendState], Mapping[FrontendKey, FrontendState]]:
        """Return the frontends before and after a plan that has not been committed."""
        after = self.planner.mirror.copy()
        after.accept(plan.transaction)
        return self._states(self.planner.mirror), self._states(after)

    def undisturbed(self) -> bool:
        """Tell whether the ruleset still is of the generation in which our books were right.

        Every change of a ruleset from user space makes a new generation; only packets that learn pins do not.
        """
        return self._known_generation is not None and self._known_generation == self._kernel.generation()

    def exists(self) -> bool:
        """Tell whether a table of ours is there, of either family."""
        return any(self._kernel.table_exists(family) for family in _FAMILIES)

    def remove(self) -> bool:
        """Remove our tables of both families. Raises CommitError."""
        there = [family for family in _FAMILIES if self._kernel.table_exists(family)]
        text = "".join(delete_table_text(self._place.table, family) for family in there)
        if text:
            try:
                self._nft.load(text)
            except KernelError as error:
                raise CommitError(str(error)) from error
        return bool(text)

    def close(self) -> None:
        """Close the netlink socket."""
        self._kernel.close()

    # ------------------------------------------------------------------ reading

    def _read(self, family: int) -> FoundTable:
        if not self._kernel.table_exists(family):
            return ABSENT
        digests = structure_digests(self._kernel, family)
        chains = frozenset(name[len(_CHAIN) :] for name in digests if name.startswith(_CHAIN))
        declared = frozenset(name[len(_SET) :] for name in digests if name.startswith(_SET))
        wanted = element_sets(family) + [SetName(family, name) for name in declared if name.startswith(_MEMBERS)]
        elements: dict[SetName, dict[Key, Held]] = {}
        for set_name in wanted:
            if set_name.name in declared:
                elements[set_name] = {
                    key: (value, comment or "") if isinstance(value, str) else value
                    for key, value, comment in self._kernel.dump_elements(set_name)
                }
        about = ""
        if names.ABOUT in declared:
            for _key, _value, comment in self._kernel.dump_elements(SetName(family, names.ABOUT)):
                about = comment or ""
        return FoundTable(True, chains, declared, elements, self._digest(family, digests), about)

    def _digest(self, family: int, digests: dict[str, str]) -> str:
        """Return one digest of a family's structure and of the sets that come from settings."""
        whole = hashlib.sha256(repr(sorted(digests.items())).encode())
        for set_name in interval_sets(family):
            if _SET + set_name.name in digests:
                contents = sorted(repr(element[0]) for element in self._kernel.dump_elements(set_name))
                whole.update(repr((set_name.name, contents)).encode())
        return whole.hexdigest()

    @staticmethod
    def _states(mirror: Mirror) -> dict[FrontendKey, FrontendState]:
        return {key: FrontendState(*row[1:]) for key, row in programmed(mirror, _FAMILIES).items()}

    # ------------------------------------------------------------------ writing

    def _load_structure(self, plan: Plan) -> None:
        """Load the structure of a plan.

        What somebody put under a name of ours (a map of other types, a base chain of another hook) can neither be
        altered nor always deleted by itself: where nft refuses to mend a table, the table is made anew, once.

        What is recorded afterwards counts as ours; so nothing is added to a structure that others altered before.

        Raises NftError, or CommitError where there is this other way.
        """
        for family in sorted(plan.restructured - plan.rebuilt) if not self.undisturbed() else ():
            digest = self._digest(family, structure_digests(self._kernel, family))
            if not is_about_structure(self.planner.about[family], digest):
                raise CommitError("somebody else altered the structure of our table", another_way=True)
        try:
            self._nft.load(plan.transaction.structure)
        except NftError as error:
            refused = plan.rebuilt - self._to_make_anew if error.returncode == 1 and error.stderr else set()
            self._to_make_anew = refused
            if refused:
                raise CommitError(str(error), another_way=True) from error
            raise
        self._to_make_anew = set()

    def _record_structure(self, plan: Plan, transaction: Transaction) -> None:
        for family in sorted(plan.restructured):
            digest = self._digest(family, structure_digests(self._kernel, family))
            self.planner.record_about(family, digest, transaction)

    def _retire(self, plan: Plan) -> None:
        self._nft.load(plan.retired)
        record = Transaction()
        self._record_structure(plan, record)
        if record.size:
            self._kernel.commit(record)

    def _carry_pins(self, carried: CarriedPins) -> None:
        """Add pins of one endpoint set to the other, with what is left of their time, unless their client has one."""
        source, target = carried.source.maps, carried.target.maps
        if not all(map(self._kernel.set_exists, source)):
            return  # the table was made anew
        for _round in range(_PIN_ROUNDS):
            parts: dict[Key, list[TimedElement]] = {}
            for set_name in source:
                for element in self._kernel.dump_timed_elements(set_name):
                    parts.setdefault(element.key, []).append(element)
            taken = {key for key, _value, _comment in self._kernel.dump_elements(target[0])}
            pins = [
                pin
                for key, pin in parts.items()
                if key not in taken
                and len(pin) == len(source)
                and _joined([part.value if isinstance(part.value, bytes) else b"" for part in pin]) in carried.endpoints
            ]
            try:
                self._kernel.add_timed_elements(
                    {set_name: [pin[number] for pin in pins] for number, set_name in enumerate(target)}
                )
                return
            except ElementError as error:
                if error.errno not in (errno.EBUSY, errno.EEXIST):
                    raise

    def _drop_stale_pins(self, pins: Pins) -> None:
        """Delete pins whose endpoint is no longer a member, until none is left."""
        members = self.planner.mirror.of(pins.members)
        for _round in range(_PIN_ROUNDS):
            values: dict[Key, list[bytes]] = {}
            for set_name in pins.maps:
                for key, value, _comment in self._kernel.dump_elements(set_name):
                    values.setdefault(key, []).append(value if isinstance(value, bytes) else b"")
            stale = [key for key, parts in values.items() if _joined(parts) not in members]
            if not stale:
                return
            for set_name in pins.maps:
                self._kernel.delete_elements_ignoring_missing(set_name, stale)


def _joined(parts: list[bytes]) -> bytes:
    """Return the endpoint of a pin; its port may be kept in a map of its own, without padding to four bytes."""
    joined = b"".join(parts)
    return joined + b"\x00" * (-len(joined) % 4)


def _frontend_of(error: ElementError) -> FrontendKey | None:
    """Return whose element was refused, for sets whose keys begin with a frontend."""
    key, set_name = error.key, error.set_name
    if isinstance(key, tuple):
        key = key[0]
    if not isinstance(key, bytes) or set_name is None:
        return None
    base = set_name.name[len(names.NODE_PORT) :] if set_name.name.startswith(names.NODE_PORT) else set_name.name
    if base in names.VERDICT_MAPS or base in (names.SOURCE_RESTRICTED, names.LOOPBACK_NODE_PORTS):
        return read_frontend_key(set_name.family, key)
    return None
