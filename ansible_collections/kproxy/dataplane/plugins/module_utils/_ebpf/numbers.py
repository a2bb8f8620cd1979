# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Numbers of service ports: one owner hands them out, and they survive restarts.

A number names endpoint sets, pins and source ranges in the maps, so two service ports with one number would overwrite
each other. On start a number found in the maps is accepted only if a single service port uses it; addresses that were
taken from a Service meanwhile stand beside those that it kept, and cost it neither its number nor its pins.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import ServicePortName

#: Set numbers are twice as large and must fit 32 bits.
LIMIT = 1 << 30


class Numbers:
    """The numbers in use. `next` goes up, so that a freed number comes back only after all others."""

    def __init__(self, next_number: int = 1) -> None:
        self.next = max(1, next_number)
        self._of: dict[ServicePortName, int] = {}
        self._used: set[int] = set()

    def of(self, name: ServicePortName) -> int:
        """Return the number of a service port; a new one if it has none."""
        number = self._of.get(name)
        if number is None:
            while self.next in self._used or not 0 < self.next < LIMIT:
                self.next = self.next + 1 if self.next < LIMIT else 1
            number = self._of[name] = self.next
            self._used.add(number)
            self.next += 1
        return number

    def known(self, name: ServicePortName) -> bool:
        """Whether a service port has a number already."""
        return name in self._of

    def names(self) -> dict[int, ServicePortName]:
        """Return the service ports by number."""
        return {number: name for name, number in self._of.items()}

    def release(self, name: ServicePortName) -> None:
        """Forget a service port whose entries are gone from the maps."""
        number = self._of.pop(name, None)
        if number is not None:
            self._used.discard(number)

    def adopt(self, found: Iterable[tuple[int, ServicePortName | None]]) -> None:
        """Take over numbers read from the maps.

        Args:
            found: (number, service port) for every frontend in the maps; None stands for a frontend that no service
                port wants, whose number must not be given away to another while it is there.
        """
        holders: dict[int, set[ServicePortName]] = {}
        for number, holder in found:
            holders.setdefault(number, set()).update({holder} if holder else ())
            self.next = max(self.next, number + 1)
        for number in sorted(holders):
            self._used.add(number)
            if len(holders[number]) == 1:
                (holder,) = holders[number]
                if holder not in self._of and 0 < number < LIMIT:
                    self._of[holder] = number
