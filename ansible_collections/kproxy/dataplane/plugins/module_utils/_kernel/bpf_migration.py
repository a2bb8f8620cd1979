# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From one set of pins to the next without losing a connection: larger maps, or the layout of another version.

Maps that the programs fill are not copied but pinned once more, so that old and new programs see the same flows while
the links are swapped one after the other. Links are moved by pinning them once more, too; nothing is detached for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_link
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap

_SCHEMA_PREFIX = "v"
_MAPS_PREFIX = "maps_"


def schemas(root: str) -> dict[int, str]:
    """Return the directory of every schema that is pinned under `root`, by its number."""
    return _numbered(root, _SCHEMA_PREFIX)


def generations(directory: str) -> dict[int, str]:
    """Return the map directories of one schema, by their number."""
    return _numbered(directory, _MAPS_PREFIX)


def _numbered(folder: str, prefix: str) -> dict[int, str]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found = {
        int(name[len(prefix) :]): os.path.join(folder, name)
        for name in names
        if name.startswith(prefix) and name[len(prefix) :].isdigit()
    }
    return dict(sorted(found.items()))


def share_maps(source: str, target: str, names: Iterable[str]) -> None:
    """Pin the named maps of one map directory in another, too, where that has none of the name. Raises OSError."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    for name in names:
        if os.path.exists(os.path.join(source, name)):
            _pin_again(os.path.join(source, name), os.path.join(target, name))


def take_links(source: str, target: str) -> None:
    """Move the links of one directory to another, where that has none of the name. Raises OSError."""
    for name in sorted(os.listdir(source)) if os.path.isdir(source) else []:
        os.makedirs(target, mode=0o700, exist_ok=True)
        _pin_again(os.path.join(source, name), os.path.join(target, name))
        # Not detached: the other pin holds it.
        os.unlink(os.path.join(source, name))


def _pin_again(path: str, other: str) -> None:
    if not os.path.exists(other):
        descriptor = bpf.get_pinned(path)
        try:
            bpf.pin(descriptor, other)
        finally:
            os.close(descriptor)


def filled(maps: str) -> bool:
    """Whether a map directory was filled to its end. Settings are written last: programs run on no maps without."""
    values = read_maps(maps, ("settings",)).get("settings", {}).values()
    return any(map(any, values))


def read_maps(maps: str, names: Iterable[str]) -> dict[str, dict[bytes, bytes]]:
    """Return the elements of those maps that are pinned in a map directory, whatever their layout. Raises OSError."""
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            opened = BpfMap(name, bpf.get_pinned(os.path.join(maps, name)))
            try:
                found[name] = opened.dump()
            finally:
                opened.close()
    return found


def remove_schema(directory: str) -> None:
    """Detach what is pinned in a schema's directory, then remove it. Raises OSError."""
    links = os.path.join(directory, "links")
    for name in sorted(os.listdir(links)) if os.path.isdir(links) else []:
        bpf_link.remove(os.path.join(links, name))
    shutil.rmtree(directory)
