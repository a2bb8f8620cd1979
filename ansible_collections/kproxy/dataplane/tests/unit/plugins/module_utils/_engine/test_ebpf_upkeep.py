# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What fails while the node is followed is tried again in its time, and said once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine import ebpf_upkeep
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_upkeep import COLLECT_SECONDS, EbpfUpkeep

TURNS = 6


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tried = 0

    def upkeep(self) -> None:
        self.tried += 1
        raise self.error


@pytest.mark.parametrize("error", [CommitError("map pod_links is full"), OSError("no"), KeyError("a fault of ours")])
def test_a_failure_that_lasts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    clock, waits = SimpleNamespace(now=1000.0), []

    def select(readers: list[Any], _writers: list[Any], _others: list[Any], wait: float) -> tuple[list[Any], ...]:
        waits.append(wait)
        clock.now += wait
        return ([] if len(waits) <= TURNS else [readers[1]], [], [])

    monkeypatch.setattr(ebpf_upkeep, "select", SimpleNamespace(select=select))
    monkeypatch.setattr(ebpf_upkeep, "time", SimpleNamespace(monotonic=lambda: clock.now))
    backend = Failing(error)
    upkeep = EbpfUpkeep(cast(EbpfBackend, backend))
    with caplog.at_level(logging.WARNING):
        upkeep.start()
        upkeep.close()
    assert waits == [COLLECT_SECONDS] * (TURNS + 1)
    assert backend.tried == TURNS
    assert len(caplog.records) == 1
