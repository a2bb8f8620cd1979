# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A way back is armed only with a script that can be run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import tool
from ansible_collections.kproxy.dataplane.plugins.modules import safeguard

KEPT = "# of the first time\n"
#: What the folder holds while the timer waits; whether the script is that afterwards.
SCRIPTS = [(KEPT, True), (None, False)]


@pytest.mark.parametrize(("there", "kept"), SCRIPTS, ids=["its script is there", "its script has gone"])
def test_a_timer_that_waits_already(
    there: str | None, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(tool, "run", commands.append)
    path = tmp_path / "undo.sh"
    if there is not None:
        path.write_text(there)
    with patch_module_args({"state": "armed", "restore": False, "folder": str(tmp_path)}), pytest.raises(SystemExit):
        safeguard.main()
    assert json.loads(capsys.readouterr().out)["armed"]
    assert (path.read_text() == KEPT) == kept
    assert [command[:2] for command in commands[1:]] == [["systemctl", "stop"], ["systemd-run", "--quiet"]]
    assert commands[-1][-1] == str(path)
