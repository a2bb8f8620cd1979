# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node has been given it has at every boot: files that went are written again, what failed stands in none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.kproxy.dataplane.plugins.module_utils._node_settings import system
from ansible_collections.kproxy.dataplane.plugins.modules import node_settings

FORWARD = "net.ipv4.ip_forward"
PORTS = "net.ipv4.ip_local_reserved_ports"


class Node:
    """A node whose files are below a folder and whose kernel refuses some values."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.kernel = {FORWARD: "0", PORTS: ""}
        self.refuses: set[str] = set()
        self.boot = folder / "60-kproxy.conf"
        self._capsys = capsys
        monkeypatch.setattr(system, "SYSCTL_FILE", str(self.boot))
        monkeypatch.setattr(system, "MODULES_FILE", str(folder / "modules.conf"))
        monkeypatch.setattr(system, "LEDGER_FILE", str(folder / "settings.json"))
        monkeypatch.setattr(system, "has_modules", lambda: False)
        monkeypatch.setattr(
            system, "read_sysctls", lambda names: {n: self.kernel[n] for n in names if n in self.kernel}
        )
        monkeypatch.setattr(system, "write_sysctl", self._write)

    def _write(self, name: str, value: str) -> None:
        if value in self.refuses:
            raise system.SettingError(f"sysctl {name} cannot be set to {value!r}")
        self.kernel[name] = value

    def run(self, **options: Any) -> dict[str, Any]:
        """Run the module and return its result."""
        with patch_module_args(options), pytest.raises(SystemExit):
            node_settings.main()
        result: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return result

    def at_boot(self) -> list[str]:
        """Return the settings of the file that the boot reads."""
        return self.boot.read_text(encoding="utf-8").splitlines()[1:] if self.boot.exists() else []


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, monkeypatch, capsys)


def test_a_file_that_went_is_written_again(node: Node) -> None:
    node.run(sysctls={FORWARD: "1"})
    node.boot.unlink()
    preview = node.run(sysctls={FORWARD: "1"}, _ansible_check_mode=True)
    assert (preview["changed"], node.at_boot()) == (True, [])
    done = node.run(sysctls={FORWARD: "1"})
    assert (done["changed"], done["diff"], node.at_boot()) == (True, preview["diff"], [f"{FORWARD} = 1"])
    assert f"{FORWARD} = 1" in str(done["diff"])
    assert not node.run(sysctls={FORWARD: "1"})["changed"]


def test_a_file_without_a_record_goes(node: Node) -> None:
    node.boot.write_text("x = 1\n", encoding="utf-8")
    assert node.run(state="absent")["changed"]
    assert not node.boot.exists()
    assert not node.run(state="absent")["changed"]


def test_one_that_the_kernel_refuses_costs_only_itself(node: Node) -> None:
    node.refuses.add("nonsense")
    failed = node.run(sysctls={FORWARD: "1", PORTS: "nonsense"})
    assert (failed["failed"], failed["msg"]) == (True, f"sysctl {PORTS} cannot be set to 'nonsense'")
    assert (node.kernel[FORWARD], node.at_boot()) == ("1", [f"{FORWARD} = 1"])
    assert not node.run(sysctls={FORWARD: "1"})["changed"]
    assert node.run(sysctls={PORTS: "30000-32767"})["changed"]
    assert node.at_boot() == [f"{FORWARD} = 1", f"{PORTS} = 30000-32767"]
    node.run(state="absent")
    assert node.kernel == {FORWARD: "0", PORTS: ""}


def test_a_module_that_is_not_there_is_left_to_no_boot(node: Node, tmp_path: Path) -> None:
    failed = node.run(sysctls={FORWARD: "1"}, modules=["kp_no_such_module"])
    assert "kernel module kp_no_such_module cannot be loaded" in failed["msg"]
    assert (node.at_boot(), (tmp_path / "modules.conf").exists()) == ([f"{FORWARD} = 1"], False)


def test_a_refused_value_leaves_the_one_before_for_the_boot(node: Node) -> None:
    node.refuses.add("nonsense")
    node.run(sysctls={PORTS: "30000-32767"})
    assert node.run(sysctls={PORTS: "nonsense"})["failed"]
    assert (node.kernel[PORTS], node.at_boot()) == ("30000-32767", [f"{PORTS} = 30000-32767"])
