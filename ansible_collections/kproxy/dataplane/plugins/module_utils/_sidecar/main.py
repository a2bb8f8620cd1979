# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kproxyd's command line: read the settings, put the parts together, run.

Exit codes: 0 stopped by a signal; 1 cannot run here (the message says why); 2 wrong usage or configuration.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.maglev import MAGLEV
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ConfigError, ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import AddressWatch, local_addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import DEFAULT_ROOT
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import XdpOptions
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import (
    localhost_metrics,
    logfmt,
    only_one,
    source_metrics,
    unpacked,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.answers import About, Answers
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.control import ControlServer, Question
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.daemon import Daemon, Parts
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.engine_dataplane import EngineDataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import Event, Source
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.happenings import (
    Happenings,
    NoRecorder,
    Recorder,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.health_checks import HealthCheckServers
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.http_endpoints import (
    HttpEndpoint,
    health_routes,
    metrics_routes,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.inbox import Inbox
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.journal import Journal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import LocalhostRelays
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.metrics import Metrics
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reporter import Reporter
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sd_notify import Notifier
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.serving import ServingThread
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.settings import Settings, SettingsError, load
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sync_loop import SyncLoop

LOG = logging.getLogger("kproxyd")
SWITCH_SECONDS = 0.0005


def main(argv: Sequence[str] | None = None) -> int:
    """Run kproxyd; returns the exit code."""
    started_at, begun = time.time(), time.monotonic()
    arguments = _parser().parse_args(argv)
    logfmt.configure("info", journald="JOURNAL_STREAM" in os.environ)
    try:
        settings = load(
            arguments.config,
            {
                "source": arguments.source,
                "nodeName": arguments.node_name,
                "logLevel": arguments.log_level,
                "socketPath": arguments.socket,
                "stateDirectory": arguments.state_directory,
            },
        )
        config = ProxyConfig.from_mapping({**settings.proxy, "nodeName": settings.node_name})
    except (SettingsError, ConfigError) as error:
        for problem in getattr(error, "problems", [str(error)]):
            LOG.error("configuration: %s", problem)
        return 2
    logging.getLogger().setLevel(settings.log_level.upper())
    # A thread that decodes a page of objects or answers a question gives way to the committing thread this soon.
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        with only_one.only_kproxyd(settings.state_directory):
            _assemble(settings, config, started_at, begun).run()
    except (KernelError, only_one.AnotherRuns) as error:
        LOG.error("cannot run here: %s", error)
        return 1
    except OSError as error:
        LOG.error("cannot run here: %s", error)
        return 1
    return 0


def _ebpf_options(settings: Settings) -> Options | None:
    if settings.mode != "ebpf":
        return None
    chosen = settings.ebpf
    return Options(
        root=chosen.directory or DEFAULT_ROOT,
        cgroup=chosen.cgroup,
        host_only=chosen.host_namespace_only,
        protect_node_ports=chosen.protect_node_ports,
        table_size=chosen.maglev_table_size if chosen.algorithm == MAGLEV else 0,
        table_memory=chosen.maglev_memory,
        xdp=XdpOptions(chosen.xdp, chosen.xdp_devices),
        forwarding=chosen.forwarding,
        excluded=chosen.excluded_devices,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kproxyd",
        description="Keep this node's kernel in step with the Services of a Kubernetes cluster.",
        epilog="Exit codes: 0 stopped by a signal, 1 cannot run here, 2 wrong usage or configuration.",
    )
    parser.add_argument("--config", default="", metavar="FILE", help="KubeProxyConfiguration, YAML or JSON")
    parser.add_argument("--source", metavar="SOURCE", help="api, or manifests:DIR (default: api)")
    parser.add_argument("--node-name", metavar="NAME", help="this node's name in the cluster (default: the host name)")
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), help="default: info")
    parser.add_argument("--socket", metavar="PATH", help="where kproxyctl asks (default: /run/kproxy/kproxyd.sock)")
    parser.add_argument("--state-directory", metavar="DIR", help="for the change journal (default: /var/lib/kproxy)")
    return parser


def make_source(settings: Settings, metrics: Metrics) -> tuple[Source, Recorder]:
    """Return where the objects come from, and where happenings go. Imports only what that source needs."""
    if settings.source == "api":
        from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.api_source import ApiSource
        from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.event_recorder import (
            EventCollector,
            EventRecorder,
        )

        source = ApiSource(settings.kubeconfig, settings.node_name)
        recorder = EventRecorder(source.client, settings.node_name)
        metrics.registry.register(EventCollector(recorder))
        recorder.start()
        return source, recorder
    from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.manifests_source import ManifestsSource

    return ManifestsSource(settings.source.partition(":")[2]), NoRecorder()


def _assemble(settings: Settings, config: ProxyConfig, started_at: float, begun: float) -> Daemon:
    for name in unpacked.remove_other_versions():
        LOG.info("removed the unpacked files of another version: %s", name)
    threading.Thread(target=unpacked.write_through, name="write-through", daemon=True).start()
    for key in settings.left_aside:
        LOG.info("setting %s has no meaning for kproxyd and is left aside", key)
    inbox: Inbox[Event | Question] = Inbox()
    metrics = Metrics()
    journal = Journal(Path(settings.state_directory), settings.history_bytes)
    generation, last_commit_at = journal.last_commit()
    dataplane = EngineDataplane(config, generation, _ebpf_options(settings))
    source, recorder = make_source(settings, metrics)
    tell = Happenings(settings.node_name, recorder)
    reporter = Reporter(metrics, journal, settings.sync_period, config.families, tell)
    reporter.generation, reporter.last_commit_at = generation, last_commit_at
    sync_loop = SyncLoop(dataplane, reporter, settings.min_sync_period, settings.audit_period, config.families)
    health_checks = HealthCheckServers(
        lambda: reporter.proxy_state().healthy,
        lambda check, why: tell.health_check_failed(check.namespace, check.service, check.port, why),
    )
    relays = LocalhostRelays()
    source_metrics.register(metrics.registry, source)
    rejected = localhost_metrics.rejected_packets if settings.mode == "nftables" else None
    metrics.registry.register(localhost_metrics.LocalhostCollector(relays.counters, rejected))
    endpoints = _endpoints(settings, metrics, reporter, _before_scrape(metrics, health_checks), tell, started_at)
    answers = Answers(
        About(unpacked.version(), settings, started_at, dataplane.most_endpoints),
        dataplane.table,
        sync_loop,
        reporter,
        journal,
        lambda: {address.address for address in local_addresses()},
        dataplane.carriers,
        lambda: (
            *dataplane.problems(),
            *source.problems(),
            *health_checks.problems(),
            *(endpoint.failure for endpoint in endpoints if endpoint.failure),
        ),
        dataplane.outsiders,
    )
    tell.started(unpacked.version())
    return Daemon(
        Parts(
            dataplane=dataplane,
            source=source,
            sync_loop=sync_loop,
            reporter=reporter,
            metrics=metrics,
            answers=answers,
            serving=ServingThread(),
            health_checks=health_checks,
            relays=relays,
            endpoints=endpoints,
            control=ControlServer(settings.socket_path, inbox.put),
            notifier=Notifier(),
            inbox=inbox,
            watch_ruleset=dataplane.watch_ruleset,
            address_watch=AddressWatch(),
            bind_hard_fail=settings.bind_hard_fail,
            begun=begun,
        )
    )


def _endpoints(
    settings: Settings,
    metrics: Metrics,
    reporter: Reporter,
    before_scrape: Callable[[], None],
    tell: Happenings,
    started_at: float,
) -> tuple[HttpEndpoint, ...]:
    endpoints = []
    if settings.healthz is not None:
        health = health_routes(reporter.proxy_state, metrics)
        endpoints.append(HttpEndpoint("health", settings.healthz, health, tell.health_endpoint_failed))
    if settings.metrics is not None:
        shown = {**settings._asdict(), "proxy": dict(settings.proxy)}
        routes = metrics_routes(metrics, before_scrape, settings.mode, shown, unpacked.version(), started_at)
        endpoints.append(HttpEndpoint("metrics", settings.metrics, routes, tell.metrics_endpoint_failed))
    return tuple(endpoints)


def _before_scrape(metrics: Metrics, health_checks: HealthCheckServers) -> Callable[[], None]:
    """Return what fills in the figures that the serving thread owns."""

    def fill() -> None:
        metrics.health_check_failures.set(len(health_checks.failures))

    return fill


if __name__ == "__main__":
    raise SystemExit(main())
