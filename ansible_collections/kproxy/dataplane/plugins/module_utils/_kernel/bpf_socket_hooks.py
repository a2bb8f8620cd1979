# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The socket programs on the node's cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.object_file import ObjectFile
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_link, bpf_migration
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet, load_programs
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import open_directory

_PREFIX = "cgroup_"


class SocketHooks:
    """Our programs on one cgroup2 directory; None is the root of the hierarchy."""

    def __init__(self, parsed: ObjectFile, pins: str, cgroup: str | None) -> None:
        self.cgroup = cgroup
        self.parsed = parsed
        self._pins = pins

    def names(self) -> list[str]:
        """Return the names of all links that should be pinned."""
        return [_name(program.section) for program in self.parsed.programs]

    def attach(self, maps: MapSet, constants: Mapping[str, int], former: Iterable[str]) -> dict[str, str]:
        """Load the programs and put them on their hooks; what happened to each hook, by its name.

        former: directories of links that other versions have pinned, to be taken over. All programs are loaded before
        the first hook is touched, so a refusal by the verifier changes nothing.
        Raises OSError, NoCgroup2, ForeignProgram.
        """
        directory = open_directory(self.cgroup)
        try:
            loaded = load_programs(self.parsed, maps, constants)
        except OSError:
            os.close(directory)
            raise
        try:
            for path in former:
                bpf_migration.take_links(path, self._pins)
            kinds = {program.section: program.attach_type for program in self.parsed.programs}
            return {
                section: bpf_link.adopt_or_create(
                    os.path.join(self._pins, _name(section)),
                    descriptor,
                    partial(_attach_to_cgroup, directory, kinds[section]),
                )
                for section, descriptor in loaded.items()
            }
        finally:
            os.close(directory)
            for descriptor in loaded.values():
                os.close(descriptor)

    def pinned(self) -> bool:
        """Whether the link of every program is pinned. Without its pin, a link has ended."""
        return all(os.path.exists(os.path.join(self._pins, name)) for name in self.names())

    def detach(self) -> None:
        """Take the programs off the cgroup; sockets keep the endpoints that they have."""
        for name in bpf_link.pinned(self._pins):
            if name.startswith(_PREFIX):
                bpf_link.remove(os.path.join(self._pins, name))


def _name(section: str) -> str:
    return section.replace("/", "_")


def _attach_to_cgroup(directory: int, attach_type: int, program: int) -> int:
    return bpf.link_create(program, directory, attach_type)
