# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Links: attach a program to a hook and keep it there across restarts of the owner.

A pinned link outlives the process. Taking it over is one LINK_UPDATE, atomic for packets and calls; a crash between
attach and pin detaches by itself, because the kernel drops an unpinned link with its last descriptor.
"""

from __future__ import annotations

import errno
import os
from typing import Callable

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf


class ForeignProgram(Exception):
    """The pinned link holds a program that is not the one expected; somebody else swapped it."""


def adopt_or_create(pin: str, program: int, attach: Callable[[int], int]) -> str:
    """Make the link pinned at `pin` run `program`; return "created", "swapped" or "kept".

    The swap is a compare-and-swap against what the link holds when we look, so two writers cannot both win.
    Where the target (cgroup or interface) is gone, the stale pin is removed and the hook attached anew.
    """
    try:
        link = bpf.get_pinned(pin)
    except FileNotFoundError:
        return _create(pin, program, attach)
    try:
        held = bpf.link_info(link)
        wanted = bpf.program_info(program)
        if held.target == 0:
            os.unlink(pin)
            return _create(pin, program, attach)
        if held.program == wanted.number:
            return "kept"
        expected = bpf.program_by_number(held.program)
        try:
            name = bpf.program_info(expected).name
            if name != wanted.name:
                raise ForeignProgram("%s holds program %s, not %s" % (pin, name, wanted.name))
            bpf.link_update(link, program, expected)
        except OSError as error:
            if error.errno != errno.ENOLINK:
                raise
            os.unlink(pin)
            return _create(pin, program, attach)
        finally:
            os.close(expected)
        return "swapped"
    finally:
        os.close(link)


def _create(pin: str, program: int, attach: Callable[[int], int]) -> str:
    os.makedirs(os.path.dirname(pin), mode=0o700, exist_ok=True)
    link = attach(program)
    try:
        bpf.pin(link, pin)
    finally:
        os.close(link)
    return "created"


def pinned(directory: str) -> list[str]:
    """Return the names of the links that are pinned in a directory, in order."""
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def look(pin: str) -> bpf.LinkInfo | None:
    """Describe a pinned link; None if there is no such pin."""
    try:
        link = bpf.get_pinned(pin)
    except FileNotFoundError:
        return None
    try:
        return bpf.link_info(link)
    finally:
        os.close(link)


def remove(pin: str) -> bool:
    """Detach and unpin; False if there was no such pin."""
    try:
        link = bpf.get_pinned(pin)
    except FileNotFoundError:
        return False
    try:
        bpf.link_detach(link)
    except OSError as error:
        if error.errno not in (errno.ENOLINK, errno.EOPNOTSUPP, errno.ENOENT):
            raise
    finally:
        os.close(link)
    os.unlink(pin)
    return True
