# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The change a renderer asks the kernel to make: a value, produced here, committed by _kernel."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

#: Longest comment nft prints and loads again (NFTNL_UDATA_COMMENT_MAXLEN), in bytes of UTF-8.
COMMENT_MAX_BYTES = 128


class SetName(NamedTuple):
    """A set or map of our table. Its address family (4 or 6) is the family of the table that holds it."""

    family: int
    name: str

    def __str__(self) -> str:
        return f"{'ip6' if self.family == 6 else 'ip'} {self.name}"


class IntervalEnd(NamedTuple):
    """The first key *behind* a range of a plain (not concatenated) interval set; see `plain_interval`."""

    key: bytes


#: One key: plain bytes; (first, last), both included, in a concatenated interval set; or the end of a plain interval.
#: Parts of a concatenation are padded to four bytes each by whoever builds the key.
Key = Union[bytes, tuple[bytes, bytes], IntervalEnd]
#: None in a set, bytes in a data map, a verdict ("goto NAME", "jump NAME", "accept", "drop") in a verdict map.
Value = Union[None, bytes, str]
Element = tuple[Key, Value, Optional[str]]


class Transaction:
    """One atomic change.

    `structure` (nft text) is committed first. The elements of all sets follow in one netlink batch: every delete of
    every set, then every add, so a key that is both deleted and added changes its value without a gap.
    """

    __slots__ = ("structure", "deletes", "adds")

    def __init__(
        self,
        structure: str = "",
        deletes: dict[SetName, list[Key]] | None = None,
        adds: dict[SetName, list[Element]] | None = None,
    ) -> None:
        self.structure = structure
        self.deletes: dict[SetName, list[Key]] = {} if deletes is None else deletes
        self.adds: dict[SetName, list[Element]] = {} if adds is None else adds

    def delete(self, name: SetName, key: Key) -> None:
        """Ask for the removal of one element."""
        self.deletes.setdefault(name, []).append(key)

    def add(self, name: SetName, key: Key, value: Value = None, comment: str | None = None) -> None:
        """Ask for a new element."""
        self.adds.setdefault(name, []).append((key, value, comment))

    @property
    def size(self) -> int:
        """Number of element operations."""
        return sum(map(len, self.deletes.values())) + sum(map(len, self.adds.values()))

    @property
    def empty(self) -> bool:
        """True if there is nothing to commit."""
        return not self.structure and not any(self.deletes.values()) and not any(self.adds.values())

    def __repr__(self) -> str:
        deletes = sum(map(len, self.deletes.values()))
        return f"Transaction(structure={len(self.structure)} bytes, deletes={deletes}, adds={self.size - deletes})"


def plain_interval(first: bytes, last: bytes) -> tuple[Key, ...]:
    """Return the keys that make first..last, both included, in a plain interval set of big-endian keys.

    The kernel keeps such a range as a start and an end element; a range up to the highest key has no end.
    """
    behind = int.from_bytes(last, "big") + 1
    if behind >> (8 * len(last)):
        return (first,)
    return (first, IntervalEnd(behind.to_bytes(len(last), "big")))
