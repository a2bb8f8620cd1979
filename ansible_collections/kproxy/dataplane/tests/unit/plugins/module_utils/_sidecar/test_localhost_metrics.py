"""Loopback NodePorts as metrics, with kube-proxy 1.37's names and labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_metrics import (
    LocalhostCollector,
    Packets,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import RelayCounters

PREFIX = "kubeproxy_nftables_localhost_nodeport"
REJECTED = f"{PREFIX}_rejected_packets_total"
TCP, UDP, SCTP = 6, 17, 132


def relays() -> RelayCounters:
    return RelayCounters({4: 2, 6: 0}, {4: 0, 6: 5})


def samples(collector: LocalhostCollector) -> dict[tuple[str, ...], float]:
    """Return name and label values with the value."""
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name, *(value for _label, value in sorted(sample.labels.items()))): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_books_and_counters_become_samples() -> None:
    assert samples(LocalhostCollector(relays, lambda: {(4, UDP): 7, (6, SCTP): 1})) == {
        (f"{PREFIX}_listeners", "IPv4"): 2,
        (f"{PREFIX}_listeners", "IPv6"): 0,
        (f"{PREFIX}_listener_creation_failures_total", "IPv4"): 0,
        (f"{PREFIX}_listener_creation_failures_total", "IPv6"): 5,
        (REJECTED, "IPv4", "TCP"): 0,
        (REJECTED, "IPv4", "UDP"): 7,
        (REJECTED, "IPv4", "SCTP"): 0,
        (REJECTED, "IPv6", "TCP"): 0,
        (REJECTED, "IPv6", "UDP"): 0,
        (REJECTED, "IPv6", "SCTP"): 1,
    }


def test_counters_that_cannot_be_read_are_left_out_rather_than_shown_as_zero() -> None:
    def fail() -> Packets:
        raise NetlinkError("read the counters", 1)

    assert {name for name, *_labels in samples(LocalhostCollector(relays, fail))} == {
        f"{PREFIX}_listeners",
        f"{PREFIX}_listener_creation_failures_total",
    }


def test_a_dataplane_that_makes_no_such_packets_shows_no_counter() -> None:
    assert not any(name == REJECTED for name, *_labels in samples(LocalhostCollector(relays, None)))
