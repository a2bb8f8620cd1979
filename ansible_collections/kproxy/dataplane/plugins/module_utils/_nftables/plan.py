# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What has to be done to the tables, as a value: check mode, diff and commit read the same one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Key, SetName, Transaction


class Pins(NamedTuple):
    """The pins of one service port in one endpoint set, which may name endpoints that have left it.

    maps: the map of pins, and the map of their ports where that is a map of its own. members: the set they may name.
    """

    maps: tuple[SetName, ...]
    members: SetName


class CarriedPins(NamedTuple):
    """Pins of one endpoint set that count for the other as well, because endpoints they name come into it."""

    source: Pins
    target: Pins
    endpoints: frozenset[Key]


@dataclass
class Plan:
    """One change of the tables.

    The structure of the transaction comes first, then the carried pins, the elements of the transaction, retired (nft
    text that removes what nothing names any more), and the pins that went stale.
    restructured: families whose chains or sets change, so that what is recorded about them has to be written anew.
    rebuilt: families whose structure was not as we left it, or was not there.
    """

    transaction: Transaction = field(default_factory=Transaction)
    retired: str = ""
    carried: list[CarriedPins] = field(default_factory=list)
    pins: list[Pins] = field(default_factory=list)
    restructured: set[int] = field(default_factory=set)
    rebuilt: set[int] = field(default_factory=set)

    @property
    def empty(self) -> bool:
        """Nothing of the tables would change. Pins that went stale on their own do not count."""
        return self.transaction.empty and not self.retired

    @property
    def size(self) -> int:
        """Number of elements that would be added or deleted."""
        return self.transaction.size
