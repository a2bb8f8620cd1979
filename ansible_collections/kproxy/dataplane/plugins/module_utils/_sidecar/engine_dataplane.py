# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The engine as the sync loop sees it, with the facts of the state it holds."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_upkeep import EbpfUpkeep
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine, SyncResult
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import local_addresses
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.ruleset_watch import RulesetWatch
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.names import MAX_SLOTS
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import (
    CANARY,
    WHOLE,
    placement,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.dataplane import CommitFailed, Facts, Outcome
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.facts import FactsTracker

LOG = logging.getLogger("kproxyd")
_FLOWS_ADVICE = (
    "trying again. If it goes on: modprobe nf_conntrack_netlink, which some distributions keep in a package of further "
    "kernel modules"
)


class AnnouncedNft(NftCommand):
    """nft whose commits are announced to the ruleset watch, which would take them for somebody else's."""

    def __init__(self, generation: Callable[[], int]) -> None:
        """Take how to ask the kernel for the ruleset's generation."""
        super().__init__()
        self._generation = generation
        self.watch: RulesetWatch | None = None

    def load(self, structure: str, check: bool = False) -> None:
        """Load, then announce the generation if it is certain: one commit happened, and it was this one."""
        before = self._generation()
        super().load(structure, check)
        after = self._generation()
        # Two commits: one of them was foreign and must be noticed. The audit that follows costs time, never packets.
        if self.watch is not None and after - before == 1:
            self.watch.expect_generation(after)


class EngineDataplane:
    """One engine with its backend in this process's network namespace."""

    def __init__(self, config: ProxyConfig, generation: int = 0, ebpf: Options | None = None) -> None:
        """Open the sockets. Raises KernelError.

        Args:
            config: what decides about packets.
            generation: the last one of an earlier run; a restart that writes nothing stays at it.
            ebpf: the eBPF backend's options; None is the nftables backend.
        """
        self._generation = generation
        self._place = placement(config.canary is not None)
        self._kernel = Nfnetlink(self._place.table)
        self._nft = AnnouncedNft(self._kernel.generation)
        self._backend: NftablesBackend | EbpfBackend
        if ebpf is None:
            self._backend = NftablesBackend(config.families, self._nft, self._place)
        else:
            self._backend = EbpfBackend(config.families, ebpf, self._nft)
            EbpfUpkeep(self._backend).start()
        self._engine = Engine(config, self._backend)
        self._canary_left = self._place == WHOLE
        self._left_at = 0
        #: How many endpoints of one set this backend serves.
        self.most_endpoints = MAX_SLOTS if ebpf is None else sys.maxsize
        self._tracker = FactsTracker(self._engine.table, self.most_endpoints)
        self._tracker_complete = False

    @property
    def table(self) -> ServiceTable:
        """Return the service table; only the thread that owns the engine may read it."""
        return self._engine.table

    def watch_ruleset(self) -> tuple[RulesetWatch, bool]:
        """Subscribe to foreign changes; returns the watch, and whether one may have happened since the last commit.

        Called after the first commit: while somebody listens, the kernel makes a message for every element written,
        which costs a large first commit a third of its time.
        """
        watch = RulesetWatch(self._place.table, (self._backend.port,))
        self._nft.watch = watch
        return watch, self._kernel.generation() != self._left_at

    def apply(self, changes: Sequence[Change]) -> None:
        """Queue changes; never touches the kernel."""
        self._engine.apply(changes)

    def sync(self) -> Outcome:
        """Commit what is queued. Raises CommitFailed."""
        return self._run(self._engine.sync)

    def audit(self) -> Outcome:
        """Read the kernel back, commit what is queued and repair what differs. Raises CommitFailed."""
        return self._run(self._engine.audit)

    def facts(self) -> Facts:
        """Return the facts of the state in force."""
        addresses = [address.address for address in local_addresses() if address.usable]
        left_out = {f"{namespace}/{name}": why for (namespace, name), why in self._engine.left_out.items()}
        return self._tracker.facts(addresses)._replace(left_out=left_out)

    def carriers(self) -> dict[str, int]:
        """Return how many frontends are carried by what; the eBPF backend leaves some to nftables."""
        if isinstance(self._backend, NftablesBackend):
            return {self._backend.name: len(self.table.frontends)}
        return dict(Counter(self._backend.carriers().values()))

    def outsiders(self) -> Mapping[str, Any] | None:
        """Return how clients from outside are forwarded; None with nftables, which has one way only."""
        return None if isinstance(self._backend, NftablesBackend) else self._backend.outsiders()

    def problems(self) -> tuple[str, ...]:
        """Return what cannot be done here, one sentence each."""
        why = self._engine.flow_failure
        flows = (f"UDP clients may go on sending to endpoints that have gone: {why}; {_FLOWS_ADVICE}",) if why else ()
        return flows if isinstance(self._backend, NftablesBackend) else (*flows, *self._backend.problems)

    def _retire_canary(self) -> None:
        """After the first commit that serves all Services, remove the tables of an earlier canary."""
        if not self._canary_left:
            return
        self._canary_left = False
        try:
            with contextlib.closing(NftablesBackend(place=CANARY, nft=self._nft)) as former:
                if former.remove():
                    LOG.info("all Services are ours now: the tables of the canary are removed")
        except (CommitError, KernelError) as error:
            LOG.warning("the tables of the canary stay: %s", error)

    def _run(self, work: Callable[[], SyncResult]) -> Outcome:
        try:
            result = work()
        except (CommitError, KernelError) as error:
            # Which Services the failed attempt had planned is not told; read all of them after the next success.
            self._tracker_complete = False
            raise CommitFailed(str(error), isinstance(error, CommitError) and error.in_force) from error
        except Exception as error:
            # A fault of ours, which ending would only repeat at every restart: keep what is in force, stay reachable
            # for kproxyctl, turn unhealthy and try again.
            LOG.exception("unexpected failure while planning or committing")
            self._tracker_complete = False
            raise CommitFailed(f"unexpected {type(error).__name__}: {error}") from error
        self._retire_canary()
        if self._nft.watch is None:
            self._left_at = self._kernel.generation()
        if self._tracker_complete:
            self._tracker.update(result.services)
        else:
            self._tracker.update_all()
            self._tracker_complete = True
        added = sum(before is None for before in result.rows.values())
        removed = sum(key not in self.table.frontends for key in result.rows)
        return Outcome(
            generation=self._generation + result.generation,
            wrote=result.wrote,
            elements=result.size,
            added=added,
            changed=len(result.rows) - added - removed,
            removed=removed,
            flow_cleanups=result.flow_cleanups,
            unfinished=self._engine.flow_failure,
        )
