# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The pinned eBPF state of one node: maps, programs and links under one directory of bpffs.

Layout: ROOT/v<schema>/maps_<n>/<map> and ROOT/v<schema>/links/<hook>. Another schema is another directory and is never
read as if known. Maps that turn out too small move to maps_<n+1>: the new ones are filled, the links are swapped to
programs that use them, and then the old directory goes; nothing is detached meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout, programs
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import TABLES
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.object_file import ObjectFile, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.programs import sock, tc, xdp
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import (
    bpf_attached,
    bpf_counters,
    bpf_migration,
    bpf_served_blocks,
    folder_lock,
    network_devices,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import LayoutMismatch, MapSet
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_packet_hooks import (
    ETHERNET_HEADER,
    PacketHooks,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_probe import Capabilities, is_bpffs, probe
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_socket_hooks import SocketHooks
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import XdpHooks, XdpOptions
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import Device

DEFAULT_ROOT = layout.DEFAULT_ROOT
ZERO = bytes(4)
NO_XDP = XdpOptions()

#: Maps that an earlier version may have made with fewer elements.
_FIXED_SIZES = {"reasons": len(layout.REASONS)}
#: Not copied to larger maps: the programs fill them, and old and new ones share them.
_SHARED = (*layout.LEARNED_SINCE, "fragments4", "fragments6", "refusals", "xdp_packets")
#: Neither copied nor shared: counters that may have to grow, and what their owner writes anew.
_LEFT_BEHIND = ("reasons", "settings", "served_blocks")


class NoBpffs(Exception):
    """The pin directory is not on a BPF file system."""


class Unsupported(Exception):
    """The kernel lacks a hook this backend cannot do without."""


class Dataplane:
    """Owner of the pins. Use: open, fill by write(), attach, retire_old; later write() alone. To look only: adopt.

    table_size: entries of Maglev tables, 0 for none. xdp_options: where the XDP program goes. excluded: patterns of the
    names of devices that get no packet program, XDP included.
    """

    def __init__(
        self,
        root: str = DEFAULT_ROOT,
        cgroup: str | None = None,
        table_size: int = 0,
        xdp_options: XdpOptions = NO_XDP,
        excluded: tuple[str, ...] = (),
    ) -> None:
        self.root = root
        self.excluded = excluded
        self.table_size = table_size
        self.directory = os.path.join(root, "v%d" % layout.SCHEMA)
        self.capabilities: Capabilities = probe()
        self.objects: dict[str, ObjectFile] = {
            "sock": parse(programs.unpack(sock.OBJECT)),
            "tc": parse(programs.unpack(tc.OBJECT)),
            "xdp": parse(programs.unpack(xdp.OBJECT)),
        }
        self._links = os.path.join(self.directory, "links")
        self.sockets = SocketHooks(self.objects["sock"], self._links, cgroup)
        self.xdp = XdpHooks(self.objects["xdp"], self._links, xdp_options)
        self.packets = PacketHooks(self.objects["tc"], self._links, self.capabilities.tcx)
        self.maps = MapSet(None)
        self._generation = 0

    def exists(self) -> bool:
        """Whether anything of this schema is pinned."""
        return os.path.isdir(self.directory)

    def former(self) -> dict[int, str]:
        """Return the directories that other versions have pinned, by the number of their schema."""
        return {number: path for number, path in bpf_migration.schemas(self.root).items() if path != self.directory}

    @contextlib.contextmanager
    def locked(self, patience: float = folder_lock.PATIENCE_SECONDS) -> Iterator[None]:
        """Keep other processes from removing or taking over what is pinned meanwhile. Raises NoBpffs, OSError.

        patience: seconds to wait for a process that does so.
        """
        self._require_bpffs()
        with folder_lock.locked(os.path.dirname(self.root), patience):
            yield

    # -- maps -------------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Open the maps that are pinned, whatever their sizes; creates nothing. Raises OSError, LayoutMismatch."""
        found, _unfinished = self._generations()
        self.maps.close()
        if found:
            self._generation = found[-1]
            self.maps = self._adopted(self._generation)

    def former_frontends(self) -> dict[str, dict[bytes, bytes]]:
        """Return frontends4/6 of the version whose programs these are to replace; none once they are filled.

        For the numbers of service ports: what the programs have learned goes by them, and is taken over.
        """
        if any(map(bpf_migration.filled, bpf_migration.generations(self.directory).values())):
            return {}
        for number, path in reversed(self.former().items()):
            if layout.NUMBERED_SINCE <= number <= layout.SCHEMA:
                for maps in reversed(bpf_migration.generations(path).values()):
                    if bpf_migration.filled(maps):
                        return bpf_migration.read_maps(maps, ("frontends4", "frontends6"))
        return {}

    def fits(self, needed: Mapping[str, int]) -> bool:
        """Whether the open maps are all there, with room for so many elements and values of the right size."""
        definitions = {wanted.name: wanted for parsed in self.objects.values() for wanted in parsed.maps}
        values = self._value_sizes()
        needed = {**_FIXED_SIZES, **needed}
        return all(
            name in self.maps.maps
            and self.maps[name].info.max_entries >= needed.get(name, 0)
            and self.maps[name].info.value_size == values.get(name, wanted.value_size)
            for name, wanted in definitions.items()
        )

    def _value_sizes(self) -> dict[str, int]:
        return dict.fromkeys(TABLES, layout.table_value_size(self.table_size))

    def open(self, sizes: Mapping[str, int]) -> bool:
        """Adopt the pinned maps, or create them; True if they were adopted.

        `sizes`: elements needed by map name. Raises NoBpffs, Unsupported, OSError; nothing is left half-made.
        """
        self._require_bpffs()
        if not self.capabilities.socket_hooks:
            raise Unsupported("what eBPF needs is missing here: " + "; ".join(self.capabilities.missing))
        found, unfinished = self._generations()
        for number in unfinished:
            shutil.rmtree(self._map_directory(number))
        self._generation = found[-1] if found else 0
        self.maps.close()
        self._share_learned()
        if found:
            try:
                self.maps = self._map_set(self._generation, sizes)
                return True
            except LayoutMismatch:
                old = self._adopted(self._generation)
                self._generation += 1
                self._share_learned()
                self.maps = self._map_set(self._generation, sizes)
                self._carry_over(old)
                return True
        self.maps = self._map_set(self._generation, sizes)
        return False

    def _adopted(self, generation: int) -> MapSet:
        maps = MapSet(self._map_directory(generation))
        for parsed in self.objects.values():
            maps.adopt(parsed.maps, TABLES)
        return maps

    def _require_bpffs(self) -> None:
        parent = os.path.dirname(self.root)
        if not is_bpffs(parent):
            raise NoBpffs("%s is not a BPF file system: mount -t bpf bpf %s" % (parent, parent))

    def _map_set(self, generation: int, sizes: Mapping[str, int]) -> MapSet:
        maps = MapSet(self._map_directory(generation))
        try:
            for parsed in self.objects.values():
                maps.ensure(parsed.maps, {**_FIXED_SIZES, **sizes}, self._value_sizes())
        except (OSError, LayoutMismatch):
            maps.discard_new()
            maps.close()
            raise
        return maps

    def _map_directory(self, generation: int) -> str:
        return os.path.join(self.directory, "maps_%d" % generation)

    def _generations(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the map directories, and of those behind them that a move left unfinished.

        The move was cut short, or refused. What the programs run on is in the one before.
        """
        found = bpf_migration.generations(self.directory)
        numbers = list(found)
        whole = len(numbers)
        while whole > 1 and not bpf_migration.filled(found[numbers[whole - 1]]):
            whole -= 1
        return numbers[:whole], numbers[whole:]

    def _share_learned(self) -> None:
        """Take over what programs have learned with the maps before these, also where a move was cut short."""
        here = self._map_directory(self._generation)
        before = [path for number, path in bpf_migration.generations(self.directory).items() if path != here]
        if before:
            bpf_migration.share_maps(before[-1], here, _SHARED)
            return
        for number, path in reversed(self.former().items()):
            learned = [name for name, since in layout.LEARNED_SINCE.items() if since <= number <= layout.SCHEMA]
            for maps in list(bpf_migration.generations(path).values())[-1:]:
                bpf_migration.share_maps(maps, here, learned)

    def _carry_over(self, old: MapSet) -> None:
        for name, held in old.maps.items():
            same = held.info.value_size == self.maps[name].info.value_size
            if same and name not in _LEFT_BEHIND and name not in _SHARED:
                self._update(name, held.dump())
        settings = old.maps["settings"].get(ZERO)
        if settings is not None:
            self.maps["settings"].put(ZERO, settings)
        old.close()

    def retire_old(self) -> None:
        """Remove what no attached program uses any more; call after attach() and attach_devices()."""
        for number, path in bpf_migration.generations(self.directory).items():
            if number != self._generation:
                shutil.rmtree(path)
        for path in self.former().values():
            bpf_migration.remove_schema(path)

    def room(self) -> dict[str, int]:
        """Return max_entries by map."""
        return {name: held.info.max_entries for name, held in self.maps.maps.items()}

    # -- elements ---------------------------------------------------------------------------------------------------

    def read(self, names: tuple[str, ...]) -> dict[str, dict[bytes, bytes]]:
        """Return the elements of the named maps that exist."""
        return {name: self.maps[name].dump() for name in names if name in self.maps.maps}

    def tables(self) -> dict[str, dict[bytes, bytes]]:
        """Return the digests of the Maglev tables by map and set."""
        return {
            name: {key: value[: layout.TABLE_HEAD] for key, value in held.items()}
            for name, held in self.read(TABLES).items()
        }

    def write(self, plan: MapPlan) -> None:
        """Carry out a plan, step by step in its order. Raises MapFull or OSError; what was written stays valid."""
        for step in plan.steps():
            if step.upserts:
                self._update(step.map, step.upserts)
            opened: BpfMap = self.maps[step.map]
            opened.delete(step.deletes)

    def _update(self, name: str, elements: Mapping[bytes, bytes]) -> None:
        bpf_served_blocks.mark(self.maps["served_blocks"], name, elements)
        self.maps[name].update(elements)

    def settings(self) -> layout.Settings | None:
        """Return the node's settings, None before the first write."""
        data = self.maps["settings"].get(ZERO) if "settings" in self.maps.maps else None
        return layout.Settings.unpack(data) if data and any(data) else None

    def set_settings(self, settings: layout.Settings) -> None:
        """Write the node's settings."""
        self.maps["settings"].put(ZERO, settings.pack())

    def reasons(self) -> dict[str, int]:
        """Return the counters of refused and dropped calls and packets, summed over processors."""
        return bpf_counters.sums(self.maps.maps.get("reasons"), layout.REASONS)

    def xdp_packets(self) -> dict[str, int]:
        """Return how many packets of Services XDP has sent on by itself, and how many it left to tc."""
        return bpf_counters.sums(self.maps.maps.get("xdp_packets"), layout.XDP_PACKETS)

    # -- programs ---------------------------------------------------------------------------------------------------

    def attach(self) -> dict[str, str]:
        """Put the socket programs on their hooks; what happened to each, by its name. Raises as SocketHooks does.

        The maps are full by now. Whatever was killed on the way to here left them unasked, or unmarked.
        """
        bpf_served_blocks.start(self.maps.maps)
        former = [os.path.join(path, "links") for path in self.former().values()]
        return self.sockets.attach(self.maps, self._constants("sock"), former)

    def keep_pinned(self) -> None:
        """Put back what somebody has removed of the pins: maps that are open here, and the socket programs.

        Raises as attach() does.
        """
        found, _unfinished = self._generations()
        if not found or found[-1] == self._generation:
            self.maps.pin_again()
            if not self.sockets.pinned():
                self.attach()

    def attach_devices(self, swap: bool) -> None:
        """Put the packet programs on every device that lacks them, or on every one, and take them off excluded ones.

        `swap`: load the programs anew, for maps that have changed. Links of devices that are gone are unpinned.
        """
        found, without = self._devices()
        self.packets.follow(self.maps, self._constants("tc"), found, without, swap)
        self.xdp.follow(self.maps, self._constants("xdp"), found, swap)

    def devices_in_place(self) -> bool:
        """Whether attach_devices(swap=False) would change nothing."""
        found, without = self._devices()
        return self.packets.in_place(found, without) and self.xdp.in_place(self.maps, found)

    def excluded_devices(self) -> list[str]:
        """Return the names of the devices that are here and excluded."""
        return sorted(network_devices.excluded(network_devices.devices(), self.excluded))

    def _devices(self) -> tuple[dict[str, Device], list[Device]]:
        """Return the devices that get packet programs, by name, and the others."""
        found = network_devices.devices()
        return found, [found.pop(name) for name in network_devices.excluded(found, self.excluded)]

    def _constants(self, name: str) -> dict[str, int]:
        own = {
            "sock": {"has_set_retval": int(self.capabilities.set_retval)},
            "tc": {"link_header": ETHERNET_HEADER, "has_check_mtu": int(self.capabilities.check_mtu)},
        }
        return {"table_size": self.table_size, **own.get(name, {})}

    def attached(self) -> dict[str, tuple[str, int]]:
        """Return (program name, target) of every pinned link by hook; target 0 means the hook is gone."""
        return bpf_attached.attached(self._links)

    def current(self) -> bool:
        """Whether every pinned link runs the programs of this version, on the maps that are open, the only ones.

        The maps are others, or not the only ones, where a move to larger ones was cut short.
        """
        if not self.fits({}) or self.former() or len(bpf_migration.generations(self.directory)) > 1:
            return False
        tags: dict[str, str] = {}
        for name, parsed in self.objects.items():
            tags.update(bpf_attached.tags_of(parsed, self.maps, self._constants(name)))
        return bpf_attached.run_by_all(self._links, tags, {held.info.number for held in self.maps.maps.values()})

    def drain(self) -> bool:
        """Take no new connection, keep translating the packets of those there are; False if nothing is pinned.

        For a node that another backend serves now. remove() ends it, once no flow is left.
        """
        if not self.exists():
            return False
        self.adopt()
        held = self.settings()
        if held is not None and not held.flags & layout.DRAINING:
            self.set_settings(held._replace(flags=held.flags | layout.DRAINING))
        self.sockets.detach()
        return True

    def draining(self) -> bool:
        """Open what is pinned now and tell whether it drains; another process may have made it anew."""
        self.open({})
        held = self.settings()
        return held is None or bool(held.flags & layout.DRAINING)

    def remove(self) -> bool:
        """Detach everything, then remove all pins, those of other versions included; False if there was nothing."""
        self.close()
        self.packets.detach_filters()
        pinned = bpf_migration.schemas(self.root)
        if not pinned:
            return False
        for path in pinned.values():
            bpf_migration.remove_schema(path)
        if not os.listdir(self.root):
            os.rmdir(self.root)
        return True

    def close(self) -> None:
        """Close all descriptors; what is pinned keeps working."""
        self.packets.close()
        self.xdp.close()
        self.maps.close()
