# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the reflectors count, as metrics: read from them at each scrape, so that there is one set of books."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError:  # Only the bundle brings it, and only what runs from the bundle uses what is here.
    if not TYPE_CHECKING:
        Collector = object

if TYPE_CHECKING:
    # At run time only the API source has a reason to load the reflectors and what they need.
    from prometheus_client import Metric

    from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reflector import Counters
    from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.certificate import Validity

_TOTALS = (
    ("lists", "Complete lists read"),
    ("relists", "Lists read again because the server had forgotten our version"),
    ("watches", "Watches opened"),
    ("events", "Changes received"),
    ("bookmarks", "Bookmarks received"),
)


class Counted(Protocol):
    """A source that counts, by kind of object."""

    @property
    def counters(self) -> Mapping[str, Counters]:
        """Return what happened so far."""


class SourceCollector(Collector):
    """Turns a source's counters into samples."""

    def __init__(self, source: Counted) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry at each scrape."""
        counters = self._source.counters
        for name, text in _TOTALS:
            family = CounterMetricFamily(f"kproxy_source_{name}", text, labels=["kind"])
            for kind, counted in counters.items():
                family.add_metric([kind], getattr(counted, name))
            yield family
        errors = CounterMetricFamily("kproxy_source_errors", "Failed lists and watches", labels=["kind", "reason"])
        success = GaugeMetricFamily(
            "kproxy_source_last_success_timestamp_seconds",
            "Unix time of the last proof of being in step: a list, an event, a bookmark or a watch ended in order",
            labels=["kind"],
        )
        for kind, counted in counters.items():
            for reason, count in sorted(counted.errors.items()):
                errors.add_metric([kind, reason], count)
            success.add_metric([kind], counted.last_success)
        yield errors
        yield success


class Certified(Protocol):
    """A source that may show a certificate to whom it asks."""

    @property
    def validity(self) -> Validity | None:
        """Return how long the client certificate in use is good; None without one."""


class CertificateCollector(Collector):
    """Tells when the client certificate ends; nothing while there is none."""

    def __init__(self, source: Certified) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield the family; called by the registry at each scrape."""
        validity = self._source.validity
        family = GaugeMetricFamily(
            "kproxy_client_certificate_expiration_timestamp_seconds",
            "Unix time at which the certificate that is shown to API servers ends",
        )
        if validity is not None:
            family.add_metric([], validity.ends)
        yield family


def register(registry: CollectorRegistry, source: object) -> None:
    """Show a source's counters and certificate in a registry; a source without them has none to show."""
    if hasattr(source, "counters"):
        registry.register(SourceCollector(source))
    if hasattr(source, "validity"):
        registry.register(CertificateCollector(source))
