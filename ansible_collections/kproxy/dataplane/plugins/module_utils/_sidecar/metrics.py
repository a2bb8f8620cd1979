# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: kube-proxy's names where the meaning is the same, kproxy_ where it is ours.

Dashboards and alerts written for kube-proxy's nftables mode keep working. Buckets are kube-proxy's with finer ones
below, because a commit here takes about a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping

try:
    from prometheus_client import (
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        ProcessCollector,
        disable_created_metrics,
        generate_latest,
    )
    from prometheus_client.exposition import CONTENT_TYPE_LATEST
except ImportError:  # Only the bundle brings it, and only what runs from the bundle uses what is here.
    pass

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.proxy_health import (
    FAMILIES,
    HttpAnswer,
)

_SYNC_BUCKETS = (0.0005, *(0.001 * 2**power for power in range(15)))
_NETWORK_BUCKETS = (
    0.01, 0.05, 0.1, 0.25, 0.5, *range(1, 60), *range(60, 121, 5), *range(120, 301, 30)
)  # fmt: skip


class Metrics:
    """All metrics of one daemon, in a registry of their own."""

    def __init__(self) -> None:
        """Register every metric; those that count events start at zero for both families."""
        # kube-proxy exports no "_created" series, and they would double the size of a scrape.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        family = ("ip_family",)
        self.sync_seconds = self._histogram(
            "kubeproxy_sync_proxy_rules_duration_seconds", "Time of one sync, from plan to acknowledged commit", family
        )
        self.full_sync_seconds = self._histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds", "Time of a full sync: start, audit, retry", family
        )
        self.partial_sync_seconds = self._histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds", "Time of a sync of changed objects only", family
        )
        self.network_programming_seconds = Histogram(
            "kubeproxy_network_programming_duration_seconds",
            "From the change of a pod or Service (endpoints.kubernetes.io/last-change-trigger-time) to the commit",
            family,
            buckets=sorted({float(bound) for bound in _NETWORK_BUCKETS}),
            registry=self.registry,
        )
        self.last_sync = self._gauge(
            "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "When the last sync succeeded", family
        )
        self.last_queued = self._gauge(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "When the last sync was asked for", family
        )
        self.endpoint_changes_pending = self._gauge(
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending", "EndpointSlice changes not yet in the kernel"
        )
        self.endpoint_changes = self._counter(
            "kubeproxy_sync_proxy_rules_endpoint_changes_total", "EndpointSlice changes received"
        )
        self.service_changes_pending = self._gauge(
            "kubeproxy_sync_proxy_rules_service_changes_pending", "Service changes not yet in the kernel"
        )
        self.service_changes = self._counter(
            "kubeproxy_sync_proxy_rules_service_changes_total", "Service changes received"
        )
        self.no_local_endpoints = Gauge(
            # prometheus_client keeps "_total" in a gauge's name, which is what kube-proxy exports.
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "Service ports whose Local policy finds no endpoint here although the cluster has some",
            ("traffic_policy", "ip_family"),
            registry=self.registry,
        )
        self.sync_failures = self._counter(
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "Commits the kernel did not take", family
        )
        self.cleanup_failures = self._counter(
            "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
            "Commits that are in force but left behind something they replaced",
            family,
        )
        self.flow_cleanup_seconds = self._histogram(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds", "Time to find and delete stale UDP flows", family
        )
        self.flows_deleted = self._counter(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Flows deleted because their UDP endpoint is gone",
            family,
        )
        self.healthz = self._counter("kubeproxy_proxy_healthz_total", "Answers of /healthz by status", ("code",))
        self.livez = self._counter("kubeproxy_proxy_livez_total", "Answers of /livez by status", ("code",))
        self._slis = CollectorRegistry()
        self._check_result = Gauge(
            "kubernetes_healthcheck", "Result of the last run of a check", ("name", "type"), registry=self._slis
        )
        self._check_runs = Counter(
            "kubernetes_healthchecks_total", "Runs of a check", ("name", "type", "status"), registry=self._slis
        )
        self._register_own()
        for name in FAMILIES:
            for per_family in (
                self.sync_failures,
                self.cleanup_failures,
                self.flow_cleanup_seconds,
                self.flows_deleted,
            ):
                per_family.labels(ip_family=name)
            for policy in ("internal", "external"):
                self.no_local_endpoints.labels(traffic_policy=policy, ip_family=name)

    def _register_own(self) -> None:
        self.generation = self._gauge("kproxy_generation", "Number of the last commit")
        self.commit_elements = Histogram(
            "kproxy_commit_elements",
            "Map and set elements added and removed by one commit",
            buckets=(0, 1, 2, 5, 10, 20, 50, 100, 1000, 10000, 100000),
            registry=self.registry,
        )
        self.event_to_commit_seconds = self._histogram(
            "kproxy_event_to_commit_seconds", "From an event's arrival at this process to the acknowledged commit"
        )
        self.foreign_repairs = self._counter(
            "kproxy_foreign_repairs_total", "Times something else had altered our tables and they were repaired"
        )
        self.left_out = self._gauge("kproxy_left_out_services", "Services whose elements the kernel refuses")
        self.noted = self._gauge("kproxy_noted_services", "Services of whose objects some part is not served")
        self.conflicts = self._gauge("kproxy_conflicting_frontends", "Frontends that Services leave to older ones")
        self.problems = self._gauge("kproxy_problems", "What needs attention in the setup; kproxyctl status names it")
        self.audits = self._counter("kproxy_audits_total", "Times the kernel was read back and compared")
        self.refused_objects = self._gauge("kproxy_refused_objects", "Objects refused now, by kind", ("kind",))
        self.source_connected = self._gauge("kproxy_source_connected", "1 while a list or watch works", ("kind",))
        self.source_failures = self._counter("kproxy_source_failures_total", "Lists and watches that failed", ("kind",))
        self.health_check_failures = self._gauge(
            "kproxy_health_check_ports_failed", "Health check node ports that cannot be opened"
        )
        self.frontends = self._gauge("kproxy_frontends", "Frontends in the service table", ("ip_family",))
        self.start_seconds = self._gauge("kproxy_start_to_first_commit_seconds", "From process start to first commit")
        ProcessCollector(registry=self.registry)

    def checked(self, endpoint: str, results: Mapping[str, bool]) -> None:
        """Count the checks behind one answer of an endpoint (healthz or livez), in the form of Kubernetes' SLIs."""
        for name, good in results.items():
            self._check_result.labels(name=name, type=endpoint).set(int(good))
            self._check_runs.labels(name=name, type=endpoint, status="success" if good else "error").inc()

    def exposition(self) -> HttpAnswer:
        """Return the answer of /metrics."""
        return _page(self.registry)

    def service_level_indicators(self) -> HttpAnswer:
        """Return the answer of /metrics/slis (KEP-3466)."""
        return _page(self._slis)

    def _histogram(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, text, labels, buckets=_SYNC_BUCKETS, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)


def _page(registry: CollectorRegistry) -> HttpAnswer:
    return HttpAnswer(200, (("Content-Type", CONTENT_TYPE_LATEST),), generate_latest(registry))
