# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Cut a transaction where one datagram is not allowed to hold it: pure.

Only in a user namespace without privileges over the host. Each part is atomic by itself, so the order must keep every
state in between usable: first what is new (endpoints before the verdicts that lead to them), then changes (delete and
add of one key in one part), last what goes away (as given).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    Key,
    SetName,
    Transaction,
)

#: Room for the two frame messages of a batch.
_FRAME_BYTES = 64
#: Room for one message's headers, table and set name; names have at most 256 bytes with their NUL.
_MESSAGE_BYTES = 560
#: Attribute headers, padding and a verdict's code of one element.
_ELEMENT_BYTES = 80


class _Operation(NamedTuple):
    set_name: SetName
    delete: Key | None
    add: Element | None

    @property
    def cost(self) -> int:
        """An upper bound of the encoded size, message headers left out."""
        size = 0
        if self.delete is not None:
            size += _ELEMENT_BYTES + sum(map(len, _parts(self.delete)))
        if self.add is not None:
            key, value, comment = self.add
            size += _ELEMENT_BYTES + sum(map(len, _parts(key))) + len(value or b"") + len((comment or "").encode())
        return size


def split(transaction: Transaction, limit: int) -> Iterator[Transaction]:
    """Yield transactions whose batches have at most `limit` bytes each (or hold one operation), in a safe order."""
    part, used = Transaction(), _FRAME_BYTES
    for operation in _ordered(transaction):
        opened = 0
        if operation.delete is not None and operation.set_name not in part.deletes:
            opened += _MESSAGE_BYTES
        if operation.add is not None and operation.set_name not in part.adds:
            opened += _MESSAGE_BYTES
        if part.size and used + opened + operation.cost > limit:
            yield part
            part, used = Transaction(), _FRAME_BYTES
            opened = 2 * _MESSAGE_BYTES
        used += opened + operation.cost
        if operation.delete is not None:
            part.delete(operation.set_name, operation.delete)
        if operation.add is not None:
            part.adds.setdefault(operation.set_name, []).append(operation.add)
    if part.size:
        yield part


def _ordered(transaction: Transaction) -> list[_Operation]:
    deletes: dict[tuple[SetName, Key], None] = {
        (set_name, key): None for set_name, keys in transaction.deletes.items() for key in keys
    }
    new: list[_Operation] = []
    changed: list[_Operation] = []
    for set_name, elements in transaction.adds.items():
        for element in elements:
            known = (set_name, element[0])
            if known in deletes:
                del deletes[known]
                changed.append(_Operation(set_name, element[0], element))
            else:
                new.append(_Operation(set_name, None, element))
    for operations in (new, changed):
        operations.sort(key=lambda operation: operation.add is not None and isinstance(operation.add[1], str))
    return new + changed + [_Operation(set_name, key, None) for set_name, key in deletes]


def _parts(key: Key) -> tuple[bytes, ...]:
    return (key,) if isinstance(key, bytes) else tuple(key)
