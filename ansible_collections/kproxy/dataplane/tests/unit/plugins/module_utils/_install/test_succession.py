# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Who replaces the eBPF programs of another version: the module, unless a kproxyd would put them back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.layout import SCHEMA
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.succession import left_to_kproxyd

OWN, OTHER, LATER = f"v{SCHEMA}", f"v{SCHEMA - 1}", f"v{SCHEMA + 1}"


@pytest.mark.parametrize(
    ("pinned", "state", "left"),
    [
        pytest.param([OTHER], "active", True, id="upgrade under a running kproxyd"),
        pytest.param([LATER], "active", True, id="and the way back"),
        pytest.param([OTHER], "activating", True, id="kproxyd waits for its API server"),
        pytest.param([OWN, OTHER], "active", True, id="both, after a kproxyd has put its own back"),
        pytest.param([OTHER], "inactive", False, id="no kproxyd"),
        pytest.param([OTHER], "failed", False, id="kproxyd failed"),
        pytest.param([OWN], "active", False, id="the same layout"),
        pytest.param([], "active", False, id="nothing pinned"),
        pytest.param(["lost+found"], "active", False, id="something else there"),
    ],
)
def test_left_to_kproxyd(tmp_path: Path, pinned: list[str], state: str, left: bool) -> None:
    for name in pinned:
        (tmp_path / name).mkdir()
    service = Service(lambda command: (0, state if "is-active" in command else "enabled", ""))
    assert bool(left_to_kproxyd(str(tmp_path), service)) is left


def test_no_directory_at_all(tmp_path: Path) -> None:
    service = Service(lambda command: (0, "active", ""))
    assert left_to_kproxyd(str(tmp_path / "none"), service) == ""
