# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kproxyd's main thread: waits for whatever happens next and is the only one that calls the engine.

Sleeps in one select() over the inbox (source events, kproxyctl's questions), the kernel's notifications about the
ruleset and the addresses, and signals. The watchdog is fed from here and only while the serving thread lives too, so
systemd restarts a daemon in which either hangs. Ending leaves the tables as they are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import AddressWatch
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.ruleset_watch import RulesetWatch
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import memory
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.answers import Answers
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.control import ControlServer, Question
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import Dataplane, Facts
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.events import Event, Source
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.health_checks import (
    HealthCheckServers,
    wanted_listeners,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.http_endpoints import HttpEndpoint
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.inbox import Inbox
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import LocalhostRelays
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.metrics import Metrics
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reporter import Reporter
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sd_notify import Notifier
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.serving import ServingThread
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sync_loop import SyncLoop

LOG = logging.getLogger("kproxyd")
# The serving thread answers within milliseconds; this long means that it hangs.
SERVING_STALL_SECONDS = 15.0
# Longest sleep without a watchdog to feed; keeps the status line fresh, and is how often problems are looked for.
IDLE_SECONDS = 30.0


class HasFileno(Protocol):
    """Something to wait on."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""


class Parts(NamedTuple):
    """What the daemon is made of; main.py puts it together, tests exchange pieces."""

    dataplane: Dataplane
    source: Source
    sync_loop: SyncLoop
    reporter: Reporter
    metrics: Metrics
    answers: Answers
    serving: ServingThread
    health_checks: HealthCheckServers
    relays: LocalhostRelays
    endpoints: tuple[HttpEndpoint, ...]
    control: ControlServer
    notifier: Notifier
    inbox: Inbox[Event | Question]
    watch_ruleset: Callable[[], tuple[RulesetWatch, bool]]
    address_watch: AddressWatch
    bind_hard_fail: bool
    #: When it was started, by the monotonic clock: the other may be set meanwhile, as it is when a node boots.
    begun: float


class Daemon:
    """Runs until SIGTERM or SIGINT."""

    def __init__(self, parts: Parts) -> None:
        """Take the parts; nothing runs yet."""
        self._parts = parts
        self._stopping = False
        self._facts: Facts | None = None
        self._selector = selectors.DefaultSelector()
        self._signal_reader, self._signal_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._status = ""
        self._announced = False
        self._problems: frozenset[str] = frozenset()
        self._look_at = 0.0

    def run(self) -> None:
        """Serve until told to stop. Raises OSError if an endpoint must be bound and cannot."""
        parts = self._parts
        self._catch_signals()
        self._watch(parts.inbox, self._take_inbox)
        self._watch(parts.address_watch, self._addresses_changed)
        parts.serving.run(self._open())
        memory.begin_loading()
        parts.source.start(parts.inbox)
        try:
            while not self._stopping:
                for key, _events in self._selector.select(self._timeout()):
                    key.data()
                self._step()
                self._look_for_problems()
                self._feed_watchdog()
        finally:
            self._stop()

    async def _open(self) -> None:
        for endpoint in self._parts.endpoints:
            endpoint.open(self._parts.bind_hard_fail)
        try:
            self._parts.control.open()
        except OSError as error:
            LOG.warning("kproxyctl will not work: its socket cannot be opened: %s", error)

    def _watch(self, watched: HasFileno, react: Callable[[], None]) -> None:
        self._selector.register(watched.fileno(), selectors.EVENT_READ, react)

    def _catch_signals(self) -> None:
        # A handler only wakes the loop; the work happens between two commits.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._request_stop())
        signal.set_wakeup_fd(self._signal_writer, warn_on_full_buffer=False)
        self._selector.register(self._signal_reader, selectors.EVENT_READ, self._drain_signals)

    def _request_stop(self) -> None:
        self._stopping = True

    def _drain_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._signal_reader, 4096)

    def _take_inbox(self) -> None:
        items = self._parts.inbox.take_all()
        events = [item for item in items if not isinstance(item, Question)]
        self._parts.sync_loop.take(events)
        questions = [item for item in items if isinstance(item, Question)]
        if questions:
            # Whoever asks right after a change wants to see it.
            self._step()
            for question in questions:
                self._parts.answers.answer(question)

    def _ruleset_changed(self, watch: RulesetWatch) -> None:
        change = watch.read()
        if change is None or not (change.touches_us or not change.complete):
            return
        who = f"{change.process} (process {change.pid})" if change.process else "an unknown process"
        what = ", ".join(change.objects) or "changes that were lost"
        self._parts.sync_loop.foreign_change(f"{what}, by {who}")

    def _addresses_changed(self) -> None:
        if self._parts.address_watch.changed():
            self._publish()

    def _step(self) -> None:
        loop = self._parts.sync_loop
        if loop.step():
            self._publish()
        if loop.started and not self._announced:
            self._announced = True
            self._came_into_step()

    def _came_into_step(self) -> None:
        """The first commit succeeded: look out for foreign changes, tell the service manager, settle the memory."""
        seconds = time.monotonic() - self._parts.begun
        self._parts.metrics.start_seconds.set(seconds)
        LOG.info("in step %.2f s after the start", seconds)
        self._look_at = 0.0
        watch, missed = self._parts.watch_ruleset()
        self._watch(watch, lambda: self._ruleset_changed(watch))
        if missed:
            self._parts.sync_loop.foreign_change()
        self._parts.notifier.ready(self._parts.answers.headline())
        memory.settle()

    def _look_for_problems(self) -> None:
        """Say once what has come to be wrong with this node's setup, such as a certificate that is about to end."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + IDLE_SECONDS
        problems = self._parts.answers.problems()
        for problem in problems:
            if problem not in self._problems:
                LOG.warning("%s", problem)
        self._problems = frozenset(problems)
        self._parts.metrics.problems.set(len(problems))

    def _publish(self) -> None:
        """Hand what changed to the serving thread."""
        parts = self._parts
        if not parts.sync_loop.started:
            return
        try:
            facts = parts.dataplane.facts()
        except KernelError as error:
            LOG.warning("the node's addresses cannot be read: %s; probes and relays stay as they are", error)
            return
        previous, self._facts = self._facts, facts
        if facts == previous:
            return
        parts.reporter.show_facts(facts)
        if previous is None or facts[:2] != previous[:2]:
            listeners = wanted_listeners(facts.health_checks, facts.node_port_addresses)
            parts.serving.call_soon(lambda: parts.health_checks.update(listeners))
        if previous is None or facts.relays != previous.relays:
            parts.serving.call_soon(lambda: parts.relays.update(facts.relays))

    def _timeout(self) -> float:
        limit = IDLE_SECONDS
        if self._parts.notifier.watchdog_seconds is not None:
            limit = min(limit, self._parts.notifier.watchdog_seconds / 3)
        deadline = self._parts.sync_loop.deadline()
        return limit if deadline is None else max(0.0, min(limit, deadline - time.monotonic()))

    def _feed_watchdog(self) -> None:
        parts = self._parts
        status = parts.answers.headline()
        if status != self._status:
            self._status = status
            parts.notifier.status(status)
        if parts.notifier.watchdog_seconds is None:
            return
        parts.serving.beat()
        if parts.serving.alive_within(max(SERVING_STALL_SECONDS, parts.notifier.watchdog_seconds)):
            parts.notifier.watchdog()

    def _stop(self) -> None:
        LOG.info("stopping; the tables stay as they are and keep forwarding")
        parts = self._parts
        parts.notifier.stopping()
        parts.source.stop()
        closers: Iterable[Callable[[], None]] = (
            parts.control.close,
            parts.health_checks.close,
            parts.relays.close,
            *(endpoint.close for endpoint in parts.endpoints),
        )
        for close in closers:
            parts.serving.call_soon(close)
        parts.serving.stop()
