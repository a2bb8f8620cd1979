"""The short way into empty tables writes what the long way writes, whatever the rows."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import Frontend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import planner as planning
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.first_fill import fill
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import ABSENT
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.plan import Plan
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.planner import Planner
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Element, SetName
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    endpoints,
    service,
    upserts,
)
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.random_objects import (
    RandomChanges,
    settings,
)


def plan(table: ServiceTable) -> Plan:
    return Planner((4, 6)).plan_all(table, {4: ABSENT, 6: ABSENT})


def written(made: Plan) -> dict[SetName, list[Element]]:
    return {name: sorted(elements, key=repr) for name, elements in made.transaction.adds.items()}


@pytest.mark.parametrize("seed", range(8))
def test_the_short_way_writes_what_the_long_one_writes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    story, table = RandomChanges(seed), ServiceTable(settings(seed))
    for _turn in range(12):
        table.apply(upserts(*story.batch()[0]))
    short = plan(table)
    monkeypatch.setattr(planning, "fill", lambda rows, *_: list(rows))
    long = plan(table)
    assert written(short) == written(long)
    # Which row asks for a chain first decides how statements are grouped, not what they say.
    assert set(short.transaction.structure.splitlines()) == set(long.transaction.structure.splitlines())
    assert not short.transaction.deletes
    assert not long.transaction.deletes


def test_it_is_the_way_of_cluster_ips(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Frontend] = []

    def watched(*given: Any) -> list[Frontend]:
        left.extend(fill(*given))
        return left

    monkeypatch.setattr(planning, "fill", watched)
    table = ServiceTable(config())
    plain = service("web"), endpoints("web", "10.244.1.1", "10.244.2.1")
    table.apply(upserts(*plain, service("none", clusterIP="10.96.0.99", clusterIPs=["10.96.0.99"])))
    plan(table)
    assert {row.service_port.name for row in left} == {"none"}
