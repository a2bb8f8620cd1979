# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Before anything is asked of bpf(2): the limit that older kernels count maps against."""

from __future__ import annotations

import resource

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_probe

DEFAULT = 64 * 1024
HARD = 8 * 1024 * 1024
NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(("may", "limits"), [(True, (NONE, NONE)), (False, (HARD, HARD))], ids=["root", "nobody"])
def test_the_limit_of_locked_memory_is_lifted_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, may: bool, limits: tuple[int, int]
) -> None:
    held = {resource.RLIMIT_MEMLOCK: (DEFAULT, HARD)}

    def set_limit(kind: int, wanted: tuple[int, int]) -> None:
        if wanted[1] != HARD and not may:
            raise ValueError("not allowed to raise maximum limit")
        held[kind] = wanted

    monkeypatch.setattr(resource, "getrlimit", held.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(bpf_probe, "_permitted", lambda: seen.append(held[resource.RLIMIT_MEMLOCK]))
    bpf_probe.probe()
    assert seen == [limits]
