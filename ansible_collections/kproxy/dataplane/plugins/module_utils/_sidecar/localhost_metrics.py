# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What happens to NodePorts on loopback, as metrics: read at each scrape from the relays and from the kernel.

Names and labels are those of kube-proxy 1.37 (KEP-6032).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError:  # Only the bundle brings it, and only what runs from the bundle uses what is here.
    if not TYPE_CHECKING:
        Collector = object

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.rule_counters import packets_by_protocol
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import WHOLE
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import RelayCounters

if TYPE_CHECKING:
    from prometheus_client import Metric

LOG = logging.getLogger("kproxyd.metrics")
_PREFIX = "kubeproxy_nftables_localhost_nodeport"
#: Packets by (family 4 or 6, protocol number).
Packets = Mapping[tuple[int, int], int]


class LocalhostCollector(Collector):
    """Turns the relays' books and the counters of our tables into samples."""

    def __init__(self, relays: Callable[[], RelayCounters], rejected: Callable[[], Packets] | None) -> None:
        """Take how to read both. rejected is None where no packet of these is ever made (eBPF refuses the socket)."""
        self._relays = relays
        self._rejected = rejected

    def collect(self) -> Iterator[Metric]:
        """Yield the families; called by the registry at each scrape."""
        counters = self._relays()
        listeners = GaugeMetricFamily(f"{_PREFIX}_listeners", "Open loopback NodePort listeners", labels=["ip_family"])
        failures = CounterMetricFamily(
            f"{_PREFIX}_listener_creation_failures", "Failed attempts to open a loopback NodePort", labels=["ip_family"]
        )
        for family in (4, 6):
            listeners.add_metric([f"IPv{family}"], counters.listeners[family])
            failures.add_metric([f"IPv{family}"], counters.creation_failures[family])
        yield listeners
        yield failures
        if self._rejected is not None:
            yield from self._rejections(self._rejected)

    def _rejections(self, rejected: Callable[[], Packets]) -> Iterator[Metric]:
        try:
            packets = rejected()
        except KernelError as error:
            LOG.warning("the counters of rejected packets cannot be read: %s; this scrape lacks them", error)
            return
        found = CounterMetricFamily(
            f"{_PREFIX}_rejected_packets",
            "Packets to loopback NodePorts that were rejected: UDP and SCTP, and TCP without a listener by setting",
            labels=["ip_family", "protocol"],
        )
        for family in (4, 6):
            for number, name in NAMES.items():
                found.add_metric([f"IPv{family}", name], packets.get((family, number), 0))
        yield found


def rejected_packets() -> Packets:
    """Read the counters of the tables in this network namespace. Raises KernelError."""
    with Nfnetlink(WHOLE.table) as kernel:
        return {
            (family, protocol): count
            for family in (4, 6)
            for protocol, count in packets_by_protocol(kernel, family, names.REFUSE_LOOPBACK).items()
        }
