# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The eBPF dataplane: socket load balancing on the node's cgroup, tc programs on its devices, nftables for the rest.

What the eBPF path does not carry (SCTP) is carried by our nftables tables, which exist only while there is such a row,
or while they still hold connections of a node that was switched over. `carriers` says which
frontend is carried by what.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import OWNED, Books
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.btf import BtfError
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.capacity import (
    CapacityError,
    check_table_memory,
    room_for,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.elf import ElfError
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.entries import carried
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.node_entries import (
    NODE_MAPS,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan, diff_maps
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.states import MapRow, read_rows
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError, FrontendState
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_departures import end_departed
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flow_filter import keep_filter
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flows import collect
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_node import entries_here, settings_here
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import DEFAULTS, SNAT, Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_pins import forget_pins
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_plan import EbpfPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_share import NftablesShare, share_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable, TableDelta
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import refusal_table
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import (
    Dataplane,
    NoBpffs,
    Unsupported,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_link import ForeignProgram
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import LayoutMismatch
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import MapFull
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import NoCgroup2
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import devices
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.names import service_port_comment

_FAMILIES = (4, 6)
_UDP = 17
_FAILURES = (OSError, KernelError, MapFull, LayoutMismatch, ForeignProgram, NoBpffs, Unsupported, NoCgroup2, ElfError,
             BtfError, CapacityError)  # fmt: skip


class EbpfBackend:
    """Our programs and maps for the current network namespace and one cgroup."""

    name = "ebpf"

    def __init__(
        self, families: tuple[int, ...] = _FAMILIES, options: Options = DEFAULTS, nft: NftCommand | None = None
    ) -> None:
        self.options = options
        self.books = Books(options.table_size)
        self.plane = Dataplane(options.root, options.cgroup or None, options.table_size, options.xdp, options.excluded)
        self._forwarding_problem = ""
        if options.forwarding != SNAT and not self.plane.capabilities.check_mtu:
            self._forwarding_problem = "forwarding %s needs Linux 5.12 (bpf_check_mtu): outsiders are masqueraded" % (
                options.forwarding)  # fmt: skip
            self.options = options._replace(forwarding=SNAT)
        self._refusal_problem = ""
        self._departure_problem = ""
        self._filter_problem = ""
        self._crowded_problem = ""
        self._families = families
        self._nftables = NftablesBackend(families, nft)
        self._shared = False
        self._live: dict[str, dict[bytes, bytes]] = {}
        self._node: dict[str, dict[bytes, bytes]] = {}
        self._settings: layout.Settings | None = None
        self._rules: ServiceTable | None = None
        self._opened = False
        self._attached = False
        self._current = False
        self._swept = False
        #: Held by whoever touches the maps: the engine's thread, or the upkeep of upkeep().
        self._lock = threading.RLock()

    @property
    def problems(self) -> list[str]:
        """What this backend cannot do here, one sentence each."""
        own = (self._refusal_problem, self._departure_problem, self._forwarding_problem, self._filter_problem,
               self._crowded_problem)  # fmt: skip
        found = [text for text in own if text]
        for hooks in (self.plane.packets, self.plane.xdp):
            found += [text for _name, text in sorted(hooks.problems.items())]
        return found

    # -- plans ------------------------------------------------------------------------------------------------------

    def plan_all(self, table: ServiceTable) -> EbpfPlan:
        """Read the maps and return what makes them be as the table says; creates nothing. Raises CommitError."""
        with self._lock:
            try:
                return self._plan_all(table)
            except _FAILURES as error:
                raise CommitError(str(error)) from error

    def _plan_all(self, table: ServiceTable) -> EbpfPlan:
        self._rules = table
        self._live = {}
        held: layout.Settings | None = None
        if self.plane.exists():
            self.plane.adopt()
            self._opened = bool(self.plane.maps.maps)
            names = tuple("%s%d" % (name, family) for name in (*OWNED, *NODE_MAPS) for family in _FAMILIES)
            self._live = {**self.plane.read((*names, "pod_links")), **self.plane.tables()}
            held = self.plane.settings()
        else:
            self._opened = False
        former = self.plane.former_frontends()
        plan = self.books.adopt(table, self._live, held.next_service if held else 1, former)
        self._node = entries_here(table)
        for name, elements in diff_maps(self._node, self._live).steps_by_map():
            plan.merge(name, elements)
        settings = self._wanted_settings(table)
        self._settings = settings
        self._attached = self._opened and self._is_attached()
        if self._attached and not self._current:
            # Once for each process: an upgrade brings other programs.
            self._attached = self._current = self.plane.current()
        share = NftablesShare(table)
        self._shared = bool(share.frontends) or self._nftables.exists()
        return EbpfPlan(
            plan,
            None,
            settings if settings != held else None,
            self._nftables.plan_all(share) if self._shared else None,
            not self._attached,
            # Endpoints may have left while nobody saw it.
            not self._swept,
            not self._swept,
        )

    def plan(self, table: ServiceTable, delta: TableDelta) -> EbpfPlan:
        """Return what one change asks for."""
        with self._lock:
            self._rules = table
            replan = self.books.replan(table, delta)
            if delta.rules_changed:
                node = entries_here(table)
                for name, elements in diff_maps(node, self._node).steps_by_map():
                    replan.plan.merge(name, elements)
                self._node = node
            settings = self._wanted_settings(table) if delta.rules_changed or not replan.plan.empty else self._settings
            part = share_of(delta, table)
            share = None
            if self._shared:
                share = self._nftables.plan(NftablesShare(table), part)
            elif part.before:
                self._shared = True
                share = self._nftables.plan_all(NftablesShare(table))
            changed = settings if settings != self._settings else None
            self._settings = settings
            return EbpfPlan(replan.plan, replan, changed, share, False, bool(delta.udp_families), replan.unpinned)

    # -- commits ----------------------------------------------------------------------------------------------------

    def commit(self, plan: EbpfPlan) -> None:
        """Make the change. Raises CommitError; what was in force keeps forwarding, nothing new is left half-made."""
        with self._lock:
            try:
                if plan.unattached:
                    with self.plane.locked():
                        self._take_over(plan)
                else:
                    self._commit(plan)
            except _FAILURES as error:
                self._attached = self._current = self._swept = False
                raise CommitError(str(error)) from error

    def _take_over(self, plan: EbpfPlan) -> None:
        if self._opened and not self.plane.exists():
            raise CommitError("%s: removed meanwhile" % self.plane.directory, another_way=True)
        made_here = not self._opened
        try:
            self._commit(plan)
        except _FAILURES:
            # Programs of another version are never removed for that: they forward.
            if made_here and not self.plane.former():
                self.plane.remove()
                refusal_table.remove()
            raise

    def _commit(self, plan: EbpfPlan) -> None:
        needed = self.books.sizes_after(plan.replan) if plan.replan is not None else self.books.sizes()
        moved = self._make_room(needed, plan.maps)
        self.plane.write(plan.maps)
        if plan.settings is not None or moved:
            if self._settings is None:
                raise AssertionError("used before plan_all()")
            self.plane.set_settings(self._settings)
        if plan.replan is not None:
            self.books.accept(plan.replan)
        if not self._attached or moved:
            self._attach()
        # Behind the programs: those of an earlier version need the tables that they came with.
        self._follow_cluster_ips(plan)
        # Last: after a switch from nftables its tables go on serving until the programs do.
        if plan.share is not None:
            self._nftables.commit(plan.share)
        if plan.departures and self._rules is not None:
            self._departure_problem = end_departed(self.plane, self.books, self._rules)
        if plan.unpinned:
            forget_pins(self.plane, self.books)
        if plan.replan is None:
            self._swept = True

    def _attach(self) -> None:
        self.plane.attach()
        self.plane.attach_devices(swap=True)
        self.plane.retire_old()
        self._attached = self._current = True
        self._use_flow_filter()

    def _use_flow_filter(self) -> None:
        try:
            keep_filter(self.plane)
            self._filter_problem = ""
        except OSError as error:
            # Slower, but nothing else.
            self._filter_problem = "every packet is looked up in the flow tables: %s" % error

    def _follow_cluster_ips(self, plan: EbpfPlan) -> None:
        """Keep the cluster IPs whose pings the kernel refuses in step. A failure leaves them to upkeep or an audit."""
        names = ["cluster_ips%d" % family for family in _FAMILIES]
        try:
            if plan.replan is not None:
                if not self._refusal_problem:
                    refusal_table.follow(
                        (ip for name in names for ip in plan.maps.upserts.get(name, ())),
                        (ip for name in names for ip in plan.maps.deletes.get(name, ())),
                    )
                return
            if refusal_table.exists():
                refusal_table.settle(self.books.cluster_ips)
                self._refusal_problem = ""
                return
        except KernelError:
            # Somebody else altered the tables.
            pass
        problem = refusal_table.load(self.books.cluster_ips)
        if plan.replan is None:
            self._refusal_problem = problem

    def _make_room(self, needed: Mapping[str, int], plan: MapPlan) -> bool:
        """Open the maps with room for a plan; True if they are new or have moved. Raises CapacityError.

        needed: what the books hold after it. What goes is there until all that comes is, too.
        """
        check_table_memory(needed, self.options.table_size, self.options.table_memory)
        about_node = {name: len(elements) for name, elements in self._node.items()}
        together = plan.together({**needed, **about_node})
        room = room_for(together)
        if self._opened and self.plane.fits(together):
            return False
        self.plane.open(room)
        self._opened = True
        return True

    def _wanted_settings(self, table: ServiceTable) -> layout.Settings:
        return settings_here(table, self.options, self.books.numbers.next)

    # -- the node ---------------------------------------------------------------------------------------------------

    def upkeep(self) -> None:
        """Follow the node: new and removed devices and addresses, and pins that somebody removed. Raises CommitError.

        Cheap enough to call every few seconds and at every address or link event.
        """
        with self._lock:
            if not self._attached or self._rules is None:
                return
            try:
                self.plane.keep_pinned()
                self.plane.attach_devices(swap=False)
                self._follow_addresses(self._rules)
                if not self._refusal_problem and not refusal_table.exists():
                    refusal_table.load(self.books.cluster_ips)
            except _FAILURES as error:
                raise CommitError(str(error)) from error

    def _follow_addresses(self, rules: ServiceTable) -> None:
        before, self._node = self._node, entries_here(rules)
        change = diff_maps(self._node, before)
        try:
            moved = self._make_room(self.books.sizes(), change)
            self.plane.write(change)
            if moved and self._settings is not None:
                self.plane.set_settings(self._settings)
                self._attach()
        except _FAILURES:
            self._node = before
            raise

    def collect(self) -> int:
        """Remove flow entries that have ended or idled out; return how many."""
        with self._lock:
            if not self._attached:
                return 0
            done = collect(self.plane)
            self._crowded_problem = done.crowded
            return done.removed

    def _is_attached(self) -> bool:
        held = self.plane.attached()
        return all(held.get(hook, ("", 0))[1] for hook in self.plane.sockets.names()) and self.plane.devices_in_place()

    # -- nftables' share --------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The netlink port of our own nftables commits."""
        return self._nftables.port

    def carriers(self) -> dict[FrontendKey, str]:
        """Return by what each frontend is carried: "ebpf" or "nftables"."""
        table = self._rules
        return (
            {}
            if table is None
            else {key: "ebpf" if carried(row) else "nftables" for key, row in table.frontends.items()}
        )

    def outsiders(self) -> dict[str, Any]:
        """Return how clients from outside are forwarded, and what was refused or dropped, in words and numbers."""
        with self._lock:
            return {
                "forwarding": self.options.forwarding,
                "xdp": self.plane.xdp.modes(devices()),
                "xdpPackets": self.plane.xdp_packets(),
                "reasons": self.plane.reasons(),
                "excludedDevices": self.plane.excluded_devices(),
            }

    # -- looking ----------------------------------------------------------------------------------------------------

    def preview(
        self, plan: EbpfPlan
    ) -> tuple[Mapping[FrontendKey, FrontendState], Mapping[FrontendKey, FrontendState]]:
        """Return the frontends before and after a plan_all() that has not been committed."""
        before = self._states(read_rows(self._live))
        after = self._states(read_rows(self.books.wanted(_FAMILIES)))
        if plan.share is not None:
            share_before, share_after = self._nftables.preview(plan.share)
            before.update(share_before)
            after.update(share_after)
        return before, after

    def _states(self, rows: Mapping[FrontendKey, MapRow]) -> dict[FrontendKey, FrontendState]:
        names = self.books.numbers.names()
        return {
            key: FrontendState(
                service_port_comment(names[row.number]) if row.number in names else "number %d" % row.number,
                row.verdict,
                tuple(sorted(row.endpoints)),
                tuple(sorted(row.local_endpoints)),
            )
            for key, row in rows.items()
        }

    def undisturbed(self) -> bool:
        """Never certain: maps have no generation."""
        return False

    def exists(self) -> bool:
        """Tell whether anything of ours is pinned, by this version or another."""
        return self.plane.exists() or bool(self.plane.former())

    def remove(self) -> bool:
        """Detach and remove everything of ours, our share of nftables included."""
        with self._lock:
            try:
                there = self.plane.remove()
                refusal_table.remove()
                there = self._nftables.remove() or there
            except _FAILURES as error:
                raise CommitError(str(error)) from error
            self._opened = self._attached = False
            return there

    def close(self) -> None:
        """Close descriptors; what is pinned keeps forwarding."""
        with self._lock:
            self.plane.close()
            self._nftables.close()
            self._opened = self._attached = False
