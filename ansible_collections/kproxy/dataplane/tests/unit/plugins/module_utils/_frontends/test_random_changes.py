"""Whatever changes, in whatever order: the table is the one that a fresh start would build."""

from __future__ import annotations

import random

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import Frontend, FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Delete, Upsert, parse
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import upserts
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.random_objects import (
    RandomChanges,
    settings,
)


@pytest.mark.parametrize("seed", range(8))
def test_table_after_changes_is_a_fresh_one(seed: int) -> None:
    story, shuffled = RandomChanges(seed), random.Random(seed)
    table = ServiceTable(settings(seed))
    for _round in range(25):
        known: dict[FrontendKey, Frontend] = dict(table.frontends)
        changed, gone = story.batch()
        delta = table.apply([*upserts(*changed), *(Delete(kind, "shop", name) for kind, name in gone)])
        objects = list(story.objects.values())
        shuffled.shuffle(objects)
        fresh = ServiceTable(settings(seed))
        fresh.apply([Upsert(obj) for obj in map(parse, objects) if obj is not None])
        assert table.frontends == fresh.frontends
        assert table.rules == fresh.rules
        assert table.conflicts == fresh.conflicts
        assert table.built == fresh.built
        # The delta names exactly the rows that differ, as they were.
        assert delta.before == {
            key: known.get(key) for key in {*known, *table.frontends} if known.get(key) != table.frontends.get(key)
        }
