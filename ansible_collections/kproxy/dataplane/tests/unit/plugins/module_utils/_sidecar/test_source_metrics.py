# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The reflectors' books as metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reflector import Counters
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.source_metrics import register
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.certificate import Validity


class Books:
    """A source with two kinds."""

    def __init__(self) -> None:
        self.counters = {
            "Service": Counters(
                lists=2, relists=1, events=7, errors={"gone": 1, "server": 3}, last_success=1700000000.5
            ),
            "Node": Counters(lists=1),
        }


def samples(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_counters_are_read_at_each_scrape() -> None:
    registry, books = CollectorRegistry(), Books()
    register(registry, books)
    shown = samples(registry)
    assert shown['kproxy_source_relists_total{kind="Service"}'] == 1
    assert shown['kproxy_source_errors_total{kind="Service",reason="server"}'] == 3
    assert shown['kproxy_source_last_success_timestamp_seconds{kind="Service"}'] == 1700000000.5
    assert shown['kproxy_source_last_success_timestamp_seconds{kind="Node"}'] == 0
    books.counters["Service"].events += 1
    assert samples(registry)['kproxy_source_events_total{kind="Service"}'] == 8


def test_a_source_that_does_not_count_shows_nothing() -> None:
    registry = CollectorRegistry()
    register(registry, object())
    assert samples(registry) == {}


class Certified:
    """A source that shows a certificate, or none."""

    validity: Validity | None = Validity(0, 1700000000.0)


def test_the_end_of_the_client_certificate_is_shown_while_there_is_one() -> None:
    registry, source = CollectorRegistry(), Certified()
    register(registry, source)
    assert samples(registry) == {"kproxy_client_certificate_expiration_timestamp_seconds": 1700000000.0}
    source.validity = None
    assert samples(registry) == {}
