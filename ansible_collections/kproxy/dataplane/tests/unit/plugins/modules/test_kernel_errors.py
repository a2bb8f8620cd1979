# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel refuses is a module's message, not a traceback."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import residue_state
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import DumpInterrupted
from ansible_collections.kproxy.dataplane.plugins.modules import residue, residue_info, safeguard


@pytest.mark.parametrize(
    ("module", "options"), [(residue, {}), (residue_info, {}), (safeguard, {"state": "armed", "seconds": 60})]
)
def test_a_ruleset_that_never_stands_still_is_told(
    module: ModuleType, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def capture() -> None:
        raise DumpInterrupted("list chains: the ruleset changed during every attempt")

    monkeypatch.setattr(residue_state, "capture", capture)
    with patch_module_args(options), pytest.raises(SystemExit):
        module.main()
    result = json.loads(capsys.readouterr().out)
    assert (result["failed"], result["msg"]) == (True, "list chains: the ruleset changed during every attempt")
