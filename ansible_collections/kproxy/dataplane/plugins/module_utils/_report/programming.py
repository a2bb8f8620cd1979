# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the modules that program a dataplane do: read, plan, commit unless in check mode, report. One way for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.api_address import through_services
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.idle_canary import idle_canary
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.notes import all_notes
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.undetected import undetected
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.unknown_node import unknown_node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._report import frontend_changes
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import (
    node_name_of,
    proxy_config,
    read_source,
)

# Warnings are for reading; the result has all of them.
MAX_WARNINGS = 10


def present(
    params: Mapping[str, Any],
    check_mode: bool,
    make_backend: Callable[[ProxyConfig], Backend],
    hidden: str,
    kept: Callable[[], bool],
) -> dict[str, Any]:
    """Bring the kernel in step with the objects of a source; return a module's result.

    hidden: how to call what changes without any endpoint or address showing it, with a place for the number.
    kept: whether a kproxyd would put back what is written here; the changes are then named and left to it.
    Raises SourceError, CommitError, KernelError, ValueError.
    """
    reading = read_source(params, node_name_of(params))
    config = proxy_config(params)
    engine = Engine(config, make_backend(config))
    engine.apply([Upsert(obj) for obj in reading.objects])
    preview = engine.preview()
    chicken_and_egg = through_services(reading.servers, engine.table)
    if chicken_and_egg:
        raise SourceError("; ".join(chicken_and_egg))
    left = preview.changes and not check_mode and kept()
    if preview.changes and not check_mode and not left:
        engine.sync()
    changes = frontend_changes.compare(preview.before, preview.after)
    unseen = preview.changes and not changes.before and not changes.after
    left_out = [f"Service {'/'.join(service)}: {reason}" for service, reason in engine.left_out.items()]
    return {
        "changed": preview.changes,
        "left_to_kproxyd": left,
        "elements": preview.size,
        "frontends": len(preview.after),
        "endpoints": frontend_changes.summary(changes),
        "refused": sorted([*map(str, reading.refusals), *left_out]),
        "notes": [
            *unknown_node(engine.table, bool(reading.servers)),
            *undetected(engine.table),
            *idle_canary(engine.table),
            *reading.notes,
            *all_notes(engine.table),
        ],
        "conflicts": [str(conflict) for conflict in engine.conflicts],
        "diff": frontend_changes.diff(changes, [hidden % preview.size] if unseen else []),
    }


def absent(params: Mapping[str, Any], check_mode: bool, backend: Backend) -> dict[str, Any]:
    """Remove all that is ours from the kernel; return a module's result, which says what it held."""
    there = backend.exists()
    # Any settings do: what the kernel holds does not depend on what it should hold.
    held = Engine(ProxyConfig(node_name_of(params)), backend).preview().before if there else {}
    if there and not check_mode:
        backend.remove()
    changes = frontend_changes.compare(held, {})
    return {
        "changed": there,
        "left_to_kproxyd": False,
        "elements": 0,
        "frontends": 0,
        "endpoints": frontend_changes.summary(changes),
        "refused": [],
        "notes": [],
        "conflicts": [],
        "diff": frontend_changes.diff(changes),
    }


def warnings(problems: list[str]) -> list[str]:
    """Return what to warn about objects that cannot be used, or not wholly, bounded in number."""
    shown = problems[:MAX_WARNINGS]
    if len(problems) > MAX_WARNINGS:
        shown.append(f"{len(problems) - MAX_WARNINGS} more such objects; see refused and notes in the result")
    return shown
