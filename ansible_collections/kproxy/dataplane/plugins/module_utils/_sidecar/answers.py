# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which question of kproxyctl is answered by what. Runs on the loop's thread, between two commits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.api_address import through_services
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.closed_node_ports import closed_node_ports
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.idle_canary import idle_canary
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.notes import node_notes
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.undetected import undetected
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.unknown_node import unknown_node
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import memory, views
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.control import Question, QuestionError, Render
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.journal import Journal
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.reporter import Reporter
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.settings import Settings
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.sync_loop import SyncLoop

MAX_HISTORY = 10_000
# What a comparison of our own tables or maps cannot tell.
NOT_COMPARED = (
    "packets: kproxyctl trace tells what should become of one",
    "other programs' rules and what kube-proxy may have left behind: the collection's verify.yml looks at both",
)


class About(NamedTuple):
    """What never changes while the daemon runs.

    started_at: seconds since the epoch. most_endpoints: how many of one set the backend serves.
    """

    version: str
    settings: Settings
    started_at: float
    most_endpoints: int = sys.maxsize


class Answers:
    """Answers questions about the state in force."""

    def __init__(
        self,
        about: About,
        table: ServiceTable,
        sync_loop: SyncLoop,
        reporter: Reporter,
        journal: Journal,
        local_addresses: Callable[[], Collection[bytes]],
        carriers: Callable[[], Mapping[str, int]],
        problems: Callable[[], tuple[str, ...]],
        outsiders: Callable[[], Mapping[str, Any] | None] = lambda: None,
    ) -> None:
        """Take everything there is to ask about."""
        self._about = about
        self._table = table
        self._sync_loop = sync_loop
        self._reporter = reporter
        self._journal = journal
        self._local_addresses = local_addresses
        self._carriers = carriers
        self._problems = problems
        self._outsiders = outsiders
        self._commands: Mapping[str, Callable[[Mapping[str, Any]], Render]] = {
            "status": lambda _arguments: self._status(),
            "services": lambda arguments: views.services(self._table, _text(arguments, "namespace")),
            "backends": lambda arguments: views.backends(
                self._table, _text(arguments, "namespace"), _text(arguments, "service")
            ),
            "show": self._show,
            "trace": lambda arguments: views.trace(self._table, arguments, self._local_addresses()),
            "history": self._history,
            "verify": lambda _arguments: self._verify(),
        }

    def answer(self, question: Question) -> None:
        """Answer one question."""
        handler = self._commands.get(question.command)
        if handler is None:
            question.answer(QuestionError(f"unknown command {question.command!r}"))
            return
        try:
            question.answer(handler(question.arguments))
        except QuestionError as error:
            question.answer(error)

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with this node's setup, one sentence each."""
        if not self._sync_loop.started:
            return self._problems()
        servers = (one.server for one in self._reporter.sources.values())
        return (
            *self._problems(),
            *unknown_node(self._table, self._about.settings.source == "api"),
            *undetected(self._table),
            *node_notes(self._table),
            *self._closed_node_ports(),
            *idle_canary(self._table),
            *through_services(servers, self._table),
        )

    def _closed_node_ports(self) -> list[str]:
        try:
            return closed_node_ports(self._table, self._local_addresses())
        except KernelError as error:
            return [f"the node's addresses cannot be read: {error}"]

    def headline(self) -> str:
        """Return one line for systemctl status."""
        loop = self._sync_loop
        if loop.failing:
            return f"Commit failed {loop.failing} times: {self._reporter.last_error}"
        if not loop.started:
            waiting = ", ".join(loop.waiting_for)
            return f"Waiting for the first list of {waiting}" if waiting else "Ready to write"
        refused = f", {len(loop.refusals)} objects refused" if loop.refusals else ""
        return f"In step, generation {self._reporter.generation}, {len(self._table.frontends)} frontends{refused}"

    def _status(self) -> Render:
        loop, reporter, settings = self._sync_loop, self._reporter, self._about.settings
        state = reporter.proxy_state()
        counts = {4: 0, 6: 0}
        for key in self._table.frontends:
            counts[key.family] += 1
        document = {
            "version": self._about.version,
            "node": settings.node_name,
            "mode": settings.mode,
            # Which Services are ours while kube-proxy serves the others; None for all.
            "canary": None if self._table.config.canary is None else str(self._table.config.canary),
            "source": settings.source,
            "startedAt": self._about.started_at,
            "inStep": loop.started and not loop.failing,
            "waitingFor": list(loop.waiting_for),
            "generation": reporter.generation,
            "lastCommitAt": reporter.last_commit_at,
            "failing": loop.failing,
            "lastError": reporter.last_error,
            "objects": {kind: loop.known(kind) for kind in ("Service", "EndpointSlice", "Node", "ServiceCIDR")},
            "frontends": {f"IPv{family}": count for family, count in counts.items()},
            "carriedBy": dict(self._carriers()),
            "outsiders": self._outsiders(),
            "healthy": state.healthy,
            "nodeEligible": state.node.eligible if state.node.known else None,
            "foreignRepairs": reporter.foreign_repairs,
            "sources": [one._asdict() for one in reporter.sources.values()],
            "refused": [
                f"{kind} {namespace + '/' if namespace else ''}{name}: {reason}"
                for (kind, namespace, name), reason in sorted(loop.refusals.items())
            ],
            "leftOut": [f"Service {name}: {reason}" for name, reason in sorted(reporter.left_out.items())],
            "notes": [f"Service {name}: {note}" for name, notes in sorted(reporter.notes.items()) for note in notes],
            "conflicts": [str(conflict) for conflict in self._table.conflicts],
            "problems": list(self.problems()),
            "leftAside": [f"setting {key} has no meaning for kproxyd and is left aside" for key in settings.left_aside],
            "residentBytes": memory.resident_bytes(),
        }
        return lambda: document

    def _show(self, arguments: Mapping[str, Any]) -> Render:
        namespace, name = _text(arguments, "namespace"), _text(arguments, "service")
        why = self._sync_loop.refusals.get(("Service", namespace, name))
        if why and (namespace, name) not in self._table.store.services:
            raise QuestionError(f"Service {namespace}/{name} is refused: {why}")
        return views.show(self._table, namespace, name, self._about.most_endpoints)

    def _verify(self) -> Render:
        attempt = self._sync_loop.audit_now()
        if attempt is None:
            raise QuestionError(f"nothing can be compared yet: {self.headline()}")
        elements = attempt.outcome.elements if attempt.outcome is not None else 0
        document = {
            "agrees": attempt.outcome is not None and not attempt.repaired,
            "repaired": attempt.repaired,
            "elements": elements if attempt.repaired else 0,
            "foreign": list(attempt.foreign),
            "notCompared": list(NOT_COMPARED),
            "error": attempt.error,
            "generation": self._reporter.generation,
            "seconds": attempt.seconds,
        }
        return lambda: document

    def _history(self, arguments: Mapping[str, Any]) -> Render:
        last = arguments.get("last", 50)
        if not isinstance(last, int) or not 0 < last <= MAX_HISTORY:
            raise QuestionError(f"last must be a number from 1 to {MAX_HISTORY}")
        return lambda: self._journal.read(last)


def _text(arguments: Mapping[str, Any], key: str) -> str:
    value = arguments.get(key, "")
    if not isinstance(value, str):
        raise QuestionError(f"{key} must be text")
    return value
