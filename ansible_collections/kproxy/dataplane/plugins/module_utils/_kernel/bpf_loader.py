# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Create, adopt and pin the maps of an object, then load its programs.

Nothing is attached here. Maps are found by their pin under one directory; a pinned map whose layout differs from the
object's is refused by name, never read as if known. On a failure every descriptor made so far is closed, and new pins
are taken back, so nothing stays half-loaded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.btf import MapDefinition
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.object_file import RODATA, ObjectFile
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap

_ARRAY = 2
_F_RDONLY_PROG = 0x80


class LayoutMismatch(Exception):
    """A pinned map is not what the program expects. Names the map, the pin and both layouts."""


def adopt_map(path: str, wanted: MapDefinition, max_entries: int, any_value: bool = False) -> BpfMap:
    """Open the pin at `path`. Raises FileNotFoundError, or LayoutMismatch if it is another map (or too small).

    any_value: take values of any size.
    """
    found = BpfMap(wanted.name, bpf.get_pinned(path))
    info = found.info
    value_size = info.value_size if any_value else wanted.value_size
    if (info.kind, info.key_size, info.value_size) != (wanted.kind, wanted.key_size, value_size):
        found.close()
        raise LayoutMismatch(
            "%s: pinned map has type %d, key %d, value %d bytes; type %d, key %d, value %d are needed; remove the pin "
            "or load with another pin directory"
            % (path, info.kind, info.key_size, info.value_size, wanted.kind, wanted.key_size, wanted.value_size)
        )
    if info.max_entries < max_entries:
        found.close()
        raise LayoutMismatch(
            "%s: pinned map has room for %d entries, %d are needed" % (path, info.max_entries, max_entries)
        )
    return found


class MapSet:
    """The maps shared by all programs of a node, pinned in one directory (or not pinned, when it is None)."""

    def __init__(self, directory: str | None) -> None:
        self.directory = directory
        self.maps: dict[str, BpfMap] = {}
        self.created: list[str] = []

    def __getitem__(self, name: str) -> BpfMap:
        return self.maps[name]

    def adopt(self, definitions: tuple[MapDefinition, ...], value_sizes: Collection[str] = ()) -> None:
        """Open those maps of `definitions` that are pinned, and create none.

        value_sizes: names of maps whose values may have any size.
        """
        for wanted in definitions:
            if self.directory is not None and wanted.name not in self.maps:
                with contextlib.suppress(FileNotFoundError):
                    path = os.path.join(self.directory, wanted.name)
                    self.maps[wanted.name] = adopt_map(path, wanted, 0, wanted.name in value_sizes)

    def ensure(
        self,
        definitions: tuple[MapDefinition, ...],
        sizes: Mapping[str, int],
        value_sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Adopt or create every map of `definitions`.

        `sizes` raises max_entries by map name; `value_sizes` are those that the object leaves open.
        """
        if self.directory is not None:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
        for defined in definitions:
            if defined.name in self.maps:
                continue
            wanted = defined._replace(value_size=(value_sizes or {}).get(defined.name, defined.value_size))
            size = max(wanted.max_entries, sizes.get(wanted.name, 0))
            path = None if self.directory is None else os.path.join(self.directory, wanted.name)
            if path is not None:
                try:
                    self.maps[wanted.name] = adopt_map(path, wanted, sizes.get(wanted.name, 0))
                    continue
                except FileNotFoundError:
                    pass
            created = BpfMap(
                wanted.name,
                bpf.map_create(
                    "kp_" + wanted.name, wanted.kind, wanted.key_size, wanted.value_size, size, wanted.flags
                ),
            )
            self.maps[wanted.name] = created
            if path is not None:
                bpf.pin(created.fd, path)
                self.created.append(path)

    def close(self) -> None:
        """Close all descriptors; pins stay."""
        for opened in self.maps.values():
            opened.close()
        self.maps.clear()

    def pin_again(self) -> None:
        """Put back those pins that somebody has removed. Raises OSError."""
        if self.directory is not None:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            for name, opened in self.maps.items():
                path = os.path.join(self.directory, name)
                if not os.path.exists(path):
                    bpf.pin(opened.fd, path)

    def discard_new(self) -> None:
        """Take back the pins this set has made, after a failed load."""
        for path in self.created:
            if os.path.exists(path):
                os.unlink(path)
        self.created.clear()


def load_programs(parsed: ObjectFile, maps: MapSet, constants: Mapping[str, int]) -> dict[str, int]:
    """Load the programs of an object; return descriptors by section name, which the caller owns.

    `constants` sets variables of .rodata, which is frozen before loading, so that the verifier removes dead branches.
    Raises VerifierError with the program's name and the end of the verifier's log, or OSError; nothing stays loaded.
    """
    descriptors = {name: opened.fd for name, opened in maps.maps.items()}
    loaded: dict[str, int] = {}
    if parsed.rodata:
        data = parsed.rodata_with(constants)
        descriptors[RODATA] = bpf.map_create("kp_rodata", _ARRAY, 4, len(data), 1, _F_RDONLY_PROG)
    try:
        if parsed.rodata:
            bpf.map_update(descriptors[RODATA], bytes(4), data)
            bpf.map_freeze(descriptors[RODATA])
        for program in parsed.programs:
            loaded[program.section] = bpf.program_load(
                program.name, program.kind, program.attach_type, program.linked(descriptors), parsed.license
            )
    except OSError:
        for descriptor in loaded.values():
            os.close(descriptor)
        raise
    finally:
        if parsed.rodata:
            os.close(descriptors[RODATA])
    return loaded
