# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._install import retirement
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.retirement import Retirement
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import ServiceError


class Systemd:
    """Says of every unit whether it runs, and takes orders down."""

    def __init__(self, active: str = "inactive", code: int = 0) -> None:
        self.active, self.code = active, code
        self.asked: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> tuple[int, str, str]:
        self.asked.append(list(command))
        return self.code, self.active + "\n", "no such thing"


@pytest.mark.parametrize("own", [True, False])
def test_programs_are_looked_for_where_kproxyd_pins_them(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned, other = tmp_path / "pinned", tmp_path / "other"
    pinned.mkdir()
    monkeypatch.setattr(retirement, "DEFAULT_ROOT", str(other if own else pinned))
    systemd = Systemd()
    ending = Retirement(systemd, {"bpfDirectory": str(pinned)} if own else {})
    assert ending.due()
    ending.start()
    assert systemd.asked[-1][-2:] == ["retire", f"--bpf-directory={pinned}"]


@pytest.mark.parametrize(
    ("state", "due"), [("inactive", True), ("failed", True), ("active", False), ("activating", False)]
)
def test_one_unit_retires_them(state: str, due: bool, tmp_path: Path) -> None:
    assert Retirement(Systemd(state), {"bpfDirectory": str(tmp_path)}).due() is due


def test_nothing_pinned_needs_no_retirement(tmp_path: Path) -> None:
    assert not Retirement(Systemd(), {"bpfDirectory": str(tmp_path / "nothing")}).due()


def test_a_unit_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no such thing"):
        Retirement(Systemd(code=1), {"bpfDirectory": str(tmp_path)}).start()
