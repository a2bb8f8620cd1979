"""Make waits bearable: shorten the times of a case without changing which of them has passed.

``advance_seconds`` is time that really passes. A case that waits long gets all its session affinity timeouts and waits
divided by one factor, so that each timeout stays on its side of each wait, by a second or more.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

from devtools.conformance.corpus import Case, Manifest, Scope

BEARABLE_SECONDS = 6.0
MARGIN_SECONDS = 1
SHORTEST_TIMEOUT_SECONDS = 4
"""A story of two dozen clients has to fit into it."""


def _timeout(manifest: Manifest) -> int | None:
    spec = manifest.get("spec") or {}
    if manifest.get("kind") != "Service" or spec.get("sessionAffinity") != "ClientIP":
        return None
    return int(((spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}).get("timeoutSeconds") or 10800)


def shorten(case: Case) -> Case:
    """Return the case as it is if it waits for a bearable time, else with its times divided."""
    waits = [scope.advance_seconds for scope in case.scopes if scope.advance_seconds]
    if sum(waits) <= BEARABLE_SECONDS:
        return case
    timeouts = sorted({timeout for manifest in case.manifests if (timeout := _timeout(manifest)) is not None})
    for factor in range(math.ceil(sum(waits) / BEARABLE_SECONDS) * 4, 1, -1):
        if _keeps_order(timeouts, waits, factor):
            return _divide(case, factor)
    return case


def _keeps_order(timeouts: list[int], waits: list[float], factor: int) -> bool:
    for timeout in timeouts:
        short = max(1, timeout // factor)
        if short < SHORTEST_TIMEOUT_SECONDS:
            return False
        for wait in waits:
            if (timeout > wait) != (short > wait / factor) or abs(short - wait / factor) < MARGIN_SECONDS:
                return False
    return True


def _divide(case: Case, factor: int) -> Case:
    def manifest(given: Manifest) -> Manifest:
        timeout = _timeout(given)
        if timeout is None:
            return given
        changed: dict[str, Any] = copy.deepcopy(dict(given))
        changed["spec"]["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": max(1, timeout // factor)}}
        return changed

    def scope(given: Scope) -> Scope:
        probes = tuple(
            dataclasses.replace(
                probe,
                expect=dataclasses.replace(
                    probe.expect,
                    affinity_seconds=probe.expect.affinity_seconds and max(1, probe.expect.affinity_seconds // factor),
                ),
            )
            for probe in given.probes
        )
        return dataclasses.replace(
            given,
            changed=tuple(manifest(one) for one in given.changed),
            advance_seconds=given.advance_seconds / factor,
            probes=probes,
        )

    return dataclasses.replace(case, start=scope(case.start), steps=tuple(scope(step) for step in case.steps))
