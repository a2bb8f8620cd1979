# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the pinned links run, as the kernel has it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.object_file import ObjectFile
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_link
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_loader import MapSet, load_programs


def attached(pins: str) -> dict[str, tuple[str, int]]:
    """Return (program name, target) of every link pinned in a directory; target 0 means the hook is gone."""
    found = {}
    for name in bpf_link.pinned(pins):
        link = bpf_link.look(os.path.join(pins, name))
        if link is None:  # removed since it was listed
            continue
        program = bpf.program_by_number(link.program)
        try:
            found[name] = (bpf.program_info(program).name, link.target)
        finally:
            os.close(program)
    return found


def tags_of(parsed: ObjectFile, maps: MapSet, constants: Mapping[str, int]) -> dict[str, str]:
    """Return the kernel's digests of an object's programs by name; loads them for that, and attaches nothing."""
    tags = {}
    for descriptor in load_programs(parsed, maps, constants).values():
        info = bpf.program_info(descriptor)
        tags[info.name] = info.tag
        os.close(descriptor)
    return tags


def run_by_all(pins: str, tags: Mapping[str, str], maps: Set[int]) -> bool:
    """Whether every link pinned in a directory runs one of the programs with these tags, on the maps of these numbers.

    A tag is a digest of instructions, whichever maps they refer to; so the maps are compared, too.
    """
    for name in bpf_link.pinned(pins):
        link = bpf_link.look(os.path.join(pins, name))
        if link is None:
            return False
        held = bpf.program_by_number(link.program)
        info, used = bpf.program_info(held), bpf.program_maps(held)
        os.close(held)
        # One more than ours: its constants.
        if tags.get(info.name) != info.tag or len(used - maps) > 1:
            return False
    return True
