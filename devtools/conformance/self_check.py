"""A corpus that proves the runner's own network: without a proxy every probe is `pass`."""

from __future__ import annotations

import dataclasses

from devtools.conformance.corpus import Case, Expectation, Scope


def without_proxy(case: Case) -> Case:
    """Return the case with `pass` expected everywhere and no facts beside the packets."""

    def scope(given: Scope) -> Scope:
        probes = tuple(dataclasses.replace(probe, expect=Expectation("pass")) for probe in given.probes)
        return dataclasses.replace(
            given, probes=probes, advance_seconds=0, health_checks=(), proxy_health=(), metrics=(), conntrack_flush=None
        )

    return dataclasses.replace(
        case, start=scope(case.start), steps=tuple(scope(step) for step in case.steps), conntrack_entries=()
    )
