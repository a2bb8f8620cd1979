"""What a plan does to one set: nothing for what is right, a delete before a new value, leftovers by kind of plan."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import (
    endpoint_slots,
    endpoint_value,
    slot_key,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import Held
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.set_change import SetChange
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Element, Key
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint

PREFIX = b"\x0a\x60\x00\x05\x00\x50\x00\x00"
ONE, TWO, THREE = (Endpoint(bytes((10, 244, 0, number)), 8080, False) for number in (1, 2, 3))


def slots(*endpoints: Endpoint) -> dict[Key, Held]:
    return {slot_key(PREFIX, slot): endpoint_value(endpoint) for slot, endpoint in enumerate(endpoints)}


def apply(change: SetChange, held: dict[Key, Held]) -> None:
    """Make a change of an endpoint map, as strictly as the kernel does."""
    for key in change.deletes:
        del held[key]
    for key, value, _comment in change.adds:
        assert key not in held
        assert isinstance(value, bytes)
        held[key] = value


@pytest.mark.parametrize(
    ("held", "value", "deletes", "adds"),
    [
        pytest.param({}, None, [], [(b"key", None, None)], id="new in a set"),
        pytest.param({b"key": None}, None, [], [], id="there in a set"),
        pytest.param({b"other": None}, None, [], [(b"key", None, None)], id="beside another"),
        pytest.param({b"key": ("goto a", "s")}, "goto a", [], [], id="the same verdict and comment"),
        pytest.param({b"key": ("goto a", "t")}, "goto a", [b"key"], [(b"key", "goto a", "s")], id="another comment"),
        pytest.param({b"key": ("goto b", "s")}, "goto a", [b"key"], [(b"key", "goto a", "s")], id="another verdict"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_an_element(
    held: dict[Key, Held], value: str | None, deletes: list[Key], adds: list[Element], whole: bool
) -> None:
    change = SetChange(held, whole)
    change.put((b"key", value, "s" if value else None))
    assert (change.deletes, change.adds) == (deletes, adds)


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        pytest.param((), (ONE, TWO), (ONE, TWO), id="from nothing"),
        pytest.param((ONE, TWO), (ONE, TWO), (ONE, TWO), id="nothing to do"),
        pytest.param((TWO, ONE), (ONE, TWO), (TWO, ONE), id="slots are kept"),
        pytest.param((ONE, TWO, THREE), (TWO, THREE), (THREE, TWO), id="the last one fills the hole"),
        pytest.param((ONE, TWO), (), (), id="all go"),
        pytest.param((ONE,), (ONE, TWO, THREE), (ONE, TWO, THREE), id="more"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_slots(
    before: tuple[Endpoint, ...], wanted: tuple[Endpoint, ...], after: tuple[Endpoint, ...], whole: bool
) -> None:
    held = slots(*before)
    change = SetChange(dict(held), whole)
    change.put_slots(PREFIX, 0, wanted)
    change.remove_unclaimed()
    apply(change, held)
    assert held == slots(*after)


FOUR, FIVE = (Endpoint(bytes((10, 244, 0, number)), 8080, False) for number in (4, 5))


@pytest.mark.parametrize(
    ("sat", "wanted", "after", "written"),
    [
        pytest.param((), (ONE, TWO), (ONE, TWO), 2, id="from nothing"),
        pytest.param((TWO, ONE), (ONE, TWO), (TWO, ONE), 0, id="nothing to do"),
        pytest.param((ONE, TWO, THREE), (TWO, THREE), (THREE, TWO), 1, id="the last one fills the hole"),
        pytest.param((ONE, TWO, THREE), (ONE, TWO), (ONE, TWO), 0, id="the last one goes"),
        pytest.param((ONE, TWO, THREE), (TWO, FOUR), (FOUR, TWO), 1, id="two go, one comes"),
        pytest.param((ONE, TWO, THREE, FOUR), (FOUR,), (FOUR,), 1, id="the last one is left"),
        pytest.param((ONE, TWO), (TWO, THREE, FOUR), (THREE, TWO, FOUR), 2, id="one goes, two come"),
        pytest.param((ONE,), (ONE, TWO, THREE), (ONE, TWO, THREE), 2, id="more"),
        pytest.param((ONE, TWO), (FOUR, FIVE), (FOUR, FIVE), 2, id="all others"),
        pytest.param((ONE, TWO), (), (), 0, id="all go"),
        pytest.param((ONE, TWO), (ONE._replace(local=True), TWO), (ONE, TWO), 0, id="one is of this node now"),
    ],
)
def test_moved_slots(
    sat: tuple[Endpoint, ...], wanted: tuple[Endpoint, ...], after: tuple[Endpoint, ...], written: int
) -> None:
    held = slots(*sat)
    change = SetChange(dict(held), False)
    change.move_slots(PREFIX, 0, sorted(sat), wanted)
    assert len(change.adds) == written
    apply(change, held)
    assert held == slots(*after)


@pytest.mark.parametrize("held", [(), (ONE,), (THREE, FOUR), (ONE, TWO, THREE)], ids=["none", "some", "others", "more"])
def test_books_that_are_wrong_are_not_trusted(held: tuple[Endpoint, ...]) -> None:
    change, kernel = SetChange(slots(*held), False), slots(*held)
    change.move_slots(PREFIX, 0, (ONE, TWO), (TWO, FIVE))
    apply(change, kernel)
    assert set(kernel.values()) == {endpoint_value(TWO), endpoint_value(FIVE)}


def test_the_whole_removes_what_nothing_asked_for_and_a_part_does_not() -> None:
    for whole, gone in ((True, [b"stray"]), (False, [])):
        change = SetChange({b"key": None, b"stray": None}, whole)
        change.put((b"key", None, None))
        change.remove_unclaimed()
        assert change.deletes == gone


def test_slots_at_once_are_slots_one_by_one() -> None:
    elements = endpoint_slots(PREFIX, 7, (ONE, TWO))
    assert elements == [
        (slot_key(PREFIX, slot), endpoint_value(endpoint), None) for slot, endpoint in ((7, ONE), (8, TWO))
    ]
