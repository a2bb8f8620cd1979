# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A file that root runs or believes has the rights it was given, or it is not as it should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._install import files
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import unit


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kproxy.pyz"
    path.write_bytes(b"x")
    path.chmod(0o755)
    monkeypatch.setattr(unit, "BUNDLE_PATH", str(path))
    monkeypatch.setattr(files, "_OWNER", (os.geteuid(), os.getegid()))
    return path


def test_what_was_written_is_right(tmp_path: Path, bundle: Path) -> None:
    file = files.TextFile(str(tmp_path / "kproxyd.json"), "{}\n", 0o640)
    files.write(file)
    assert files.loose([file]) == []


@pytest.mark.parametrize(("mode", "told"), [(0o666, "0666"), (0o644, "0644"), (0o600, "0600")])
def test_other_rights_are_told_and_put_right(mode: int, told: str, tmp_path: Path, bundle: Path) -> None:
    file = files.TextFile(str(tmp_path / "kproxyd.json"), "{}\n", 0o640)
    files.write(file)
    os.chmod(file.path, mode)
    bundle.chmod(0o777)
    found = files.loose([file])
    assert [(one.path, one.before[-4:], one.after[-4:]) for one in found] == [
        (file.path, told, "0640"),
        (str(bundle), "0777", "0755"),
    ]
    files.tighten(found)
    assert files.loose([file]) == []


def test_a_file_that_is_not_there_has_no_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "BUNDLE_PATH", str(tmp_path / "nothing"))
    assert files.loose([files.TextFile(str(tmp_path / "none"), "", 0o640)]) == []
