# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What one plan does to one set of elements, told from what the set holds. Pure, and the hot path of planning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import (
    endpoint_slots,
    endpoint_value,
    slot_key,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import Held, Mirror
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.slots import assign
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    Key,
    SetName,
    Transaction,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint

_MISSING: Held = b"missing"


class SetChange:
    """Deletes and adds of one set; deletes come first in a transaction, so that a key in both changes its value.

    held: the set as it is. claimed: in a plan of the whole, the held keys that something asked for; None in a plan
    of a part, which deletes what it knows to be gone.
    """

    __slots__ = ("held", "deletes", "adds", "claimed")

    def __init__(self, held: dict[Key, Held], whole: bool) -> None:
        self.held = held
        self.deletes: list[Key] = []
        self.adds: list[Element] = []
        self.claimed: set[Key] | None = set() if whole else None

    def put(self, element: Element) -> None:
        """Ask for an element of a set or verdict map."""
        if self.held:
            key, value, comment = element
            if self.claimed is not None:
                self.claimed.add(key)
            held = self.held.get(key, _MISSING)
            if held == (None if value is None else (value, comment)):
                return
            if held is not _MISSING:
                self.deletes.append(key)
        self.adds.append(element)

    def put_keys(self, keys: Iterable[Key]) -> None:
        """Ask for elements of a set."""
        elements: list[Element] = [(key, None, None) for key in keys]
        if not self.held:
            self.adds += elements
            return
        for element in elements:
            self.put(element)

    def remove(self, key: Key) -> None:
        """Ask for an element to go, if it is there."""
        if key in self.held:
            self.deletes.append(key)

    def put_slots(self, prefix: bytes, first: int, endpoints: Sequence[Endpoint]) -> None:
        """Ask for these endpoints in the slots from the first on, in an order in which as many stay as can."""
        if not self.held:
            self.adds += endpoint_slots(prefix, first, endpoints)
            return
        present = self._run(prefix, first)
        kept = len(present)
        slots = assign(present, list(map(endpoint_value, endpoints)))
        for index, value in enumerate(slots):
            key = slot_key(prefix, first + index)
            if index >= kept:
                self.adds.append((key, value, None))
            elif present[index] != value:
                self.deletes.append(key)
                self.adds.append((key, value, None))
            if self.claimed is not None:
                self.claimed.add(key)
        if self.claimed is None:
            self.deletes += [slot_key(prefix, first + index) for index in range(len(slots), kept)]

    def move_slots(self, prefix: bytes, first: int, before: Sequence[Endpoint], after: Sequence[Endpoint]) -> None:
        """Ask for other endpoints in the slots from the first on; whoever stays keeps its slot, where there is one.

        before: who sits there, in any order; what is there is read in whole only if it turns out not to be so. The
        work follows the difference, but for comparing the two.
        """
        if not self._ends_at(prefix, first, len(before)):
            self.put_slots(prefix, first, after)
            return
        sat, wanted = set(before), set(after)
        leaving = {endpoint_value(endpoint) for endpoint in sat - wanted}
        coming = [endpoint_value(endpoint) for endpoint in after if endpoint not in sat]
        both = leaving.intersection(coming)  # one that moved to this node or away from it is another Endpoint
        leaving -= both
        keys = [slot_key(prefix, first + slot) for slot in range(len(after), len(before))]
        tail = [value for key in keys if isinstance(value := self.held.get(key), bytes)]
        holes = self._find(prefix, first, leaving.difference(tail), len(after))
        seats = [value for value in tail if value not in leaving] + [value for value in coming if value not in both]
        free = holes + [slot_key(prefix, first + slot) for slot in range(len(before), len(after))]
        if len(free) != len(seats):
            self.put_slots(prefix, first, after)
            return
        self.deletes += keys
        self.deletes += holes
        self.adds += [(key, value, None) for key, value in zip(free, seats)]

    def _ends_at(self, prefix: bytes, first: int, count: int) -> bool:
        """Tell whether so many slots are taken, as far as the two at the end show."""
        last = not count or slot_key(prefix, first + count - 1) in self.held
        return last and slot_key(prefix, first + count) not in self.held

    def _find(self, prefix: bytes, first: int, values: set[bytes], count: int) -> list[Key]:
        """Return the keys of those of the first slots that hold one of these values."""
        found: list[Key] = []
        missing = len(values)
        for slot in range(first, first + count):
            if not missing:
                break
            key = slot_key(prefix, slot)
            if self.held.get(key) in values:
                found.append(key)
                missing -= 1
        return found

    def _run(self, prefix: bytes, first: int) -> list[bytes]:
        """Return the values in the slots from the first on, up to the first empty one."""
        found: list[bytes] = []
        value = self.held.get(slot_key(prefix, first))
        while isinstance(value, bytes):
            found.append(value)
            value = self.held.get(slot_key(prefix, first + len(found)))
        return found

    def remove_unclaimed(self) -> None:
        """In a plan of the whole: ask for everything to go that nothing asked for."""
        claimed = self.claimed
        if claimed is not None:
            self.deletes += [key for key in self.held if key not in claimed]


class FamilyChange(dict[str, SetChange]):
    """The changes of one family's sets by name, made as a plan comes to them."""

    def __init__(self, set_names: dict[str, SetName], mirror: Mirror, whole: bool) -> None:
        super().__init__()
        self._set_names = set_names
        self._mirror = mirror
        self._whole = whole
        #: Verdicts whose chains are known to be there, or to be made by this plan.
        self.verdicts: set[str] = set()

    def __missing__(self, name: str) -> SetChange:
        made = self[name] = SetChange(self._mirror.of(self._set_names[name]), self._whole)
        return made

    def enter(self, transaction: Transaction) -> None:
        """Add all changes to a transaction."""
        for name, change in self.items():
            if change.deletes:
                transaction.deletes[self._set_names[name]] = change.deletes
            if change.adds:
                transaction.adds[self._set_names[name]] = change.adds
