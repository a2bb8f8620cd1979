"""Transactions cut for sockets that may not send much at once."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import element_encoding as encoding
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.batch_split import split
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    Element,
    Key,
    SetName,
    Transaction,
)

SERVICES, ENDPOINTS, RANGES = SetName(4, "services"), SetName(4, "endpoints-tcp"), SetName(6, "ranges")


def key(number: int) -> bytes:
    return number.to_bytes(12, "big")


def shape(transaction: Transaction) -> tuple[dict[str, list[Key]], dict[str, list[Key]]]:
    return (
        {name.name: list(keys) for name, keys in transaction.deletes.items()},
        {name.name: [element[0] for element in elements] for name, elements in transaction.adds.items()},
    )


def example() -> Transaction:
    """Service 1 is new with endpoint 1; service 2 gets another count; endpoint 3 moves; 4 goes away."""
    transaction = Transaction()
    transaction.delete(SERVICES, key(2))
    transaction.delete(SERVICES, key(4))
    transaction.delete(ENDPOINTS, key(3))
    transaction.delete(ENDPOINTS, key(4))
    transaction.add(SERVICES, key(1), "goto pick-1", "one")
    transaction.add(SERVICES, key(2), "goto pick-2")
    transaction.add(ENDPOINTS, key(3), bytes(8))
    transaction.add(ENDPOINTS, key(1), bytes(8))
    transaction.add(RANGES, (key(5), key(6)), None)
    return transaction


def test_one_operation_a_part_in_an_order_that_never_leads_nowhere() -> None:
    parts = [shape(part) for part in split(example(), 1)]
    assert parts == [
        ({}, {"endpoints-tcp": [key(1)]}),
        ({}, {"ranges": [(key(5), key(6))]}),
        ({}, {"services": [key(1)]}),
        ({"endpoints-tcp": [key(3)]}, {"endpoints-tcp": [key(3)]}),
        ({"services": [key(2)]}, {"services": [key(2)]}),
        ({"services": [key(4)]}, {}),
        ({"endpoints-tcp": [key(4)]}, {}),
    ]


@pytest.mark.parametrize("limit", [4096, 65536, 400_000])
def test_parts_keep_to_the_limit_and_hold_everything(limit: int) -> None:
    elements: list[Element] = [(key(n), f"goto pick-{n}", "c" * (n % 129)) for n in range(3000)]
    keys: list[Key] = [key(n) for n in range(1500, 4500)]
    parts = list(split(Transaction(adds={SERVICES: elements}, deletes={SERVICES: keys}), limit))
    for part in parts:
        datagram, _last = encoding.batch("kproxy", encoding.encode_pieces(part), 1)
        assert len(datagram) <= limit
        shared = set(part.deletes.get(SERVICES, ())) & {e[0] for e in elements}
        assert shared <= {e[0] for e in part.adds.get(SERVICES, ())}, "a change is never torn apart"
    assert sorted(e[0] for part in parts for e in part.adds.get(SERVICES, ())) == sorted(e[0] for e in elements)
    assert sorted(k for part in parts for k in part.deletes.get(SERVICES, ())) == sorted(keys)


def test_nothing_is_no_part() -> None:
    assert list(split(Transaction(structure="add table ip kproxy"), 1000)) == []
