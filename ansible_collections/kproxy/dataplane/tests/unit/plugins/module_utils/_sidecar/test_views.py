# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a question about something that is not there is answered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import views
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.control import QuestionError


def service(namespace: str, name: str) -> Upsert:
    metadata = {"namespace": namespace, "name": name}
    parsed = parse({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "10.96.0.1"}})
    assert parsed is not None
    return Upsert(parsed)


@pytest.fixture
def table() -> ServiceTable:
    made = ServiceTable(ProxyConfig("n1"))
    made.apply([service("shop", "frontend"), service("shop", "checkout"), service("models", "frontend")])
    return made


Ask = Callable[[ServiceTable], Any]


def packet(**arguments: Any) -> Ask:
    given = {"from": "10.244.1.7", "to": "10.96.0.1", "port": 80, **arguments}
    return lambda table: views.trace(table, given, ())


MISTAKES: list[tuple[Ask, str]] = [
    (lambda table: views.show(table, "default", "frontend"), "did you mean models/frontend or shop/frontend?"),
    (lambda table: views.show(table, "svc", "checkout"), "did you mean shop/checkout?"),
    (lambda table: views.show(table, "shop", "frontnd"), "did you mean shop/frontend?"),
    (lambda table: views.show(table, "shop", "xyz"), "kproxyctl services lists those that are"),
    (lambda table: views.backends(table, "default", "checkout"), "did you mean shop/checkout?"),
    (lambda table: views.services(table, "shopp"), "no Service of namespace shopp is known here; did you mean shop?"),
    (lambda table: views.services(table, "xyz"), "there are models, shop"),
    (packet(to="shop/frontend"), "'shop/frontend' is not an IP address; a trace needs addresses"),
    (packet(to="fd00::1"), "different address families"),
    (packet(port=0), "the port that is dialled is missing; give it by --port"),
    (packet(port=99999), "port 99999 is not a number from 1 to 65535"),
    (packet(protocol="http"), "protocol HTTP is none of TCP, UDP, SCTP, ICMP"),
]


@pytest.mark.parametrize(("ask", "advice"), MISTAKES, ids=[row[1] for row in MISTAKES])
def test_a_mistake_is_answered_with_the_next_step(table: ServiceTable, ask: Ask, advice: str) -> None:
    with pytest.raises(QuestionError) as caught:
        ask(table)
    assert advice in str(caught.value)
