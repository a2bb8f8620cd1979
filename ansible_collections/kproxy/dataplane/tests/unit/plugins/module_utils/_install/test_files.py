# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""A file that root runs or believes has the rights it was given, or it is not as it should be."""

from __future__ import annotations

import os
import time
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


def test_the_bundle_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "BUNDLE_PATH", str(tmp_path / "lib" / "kproxy.pyz"))
    source = tmp_path / "delivered"
    source.write_bytes(b"new")
    seen: list[tuple[bytes, bool]] = []

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        seen.append((path.read_bytes(), os.path.exists(unit.BUNDLE_PATH)))

    monkeypatch.setattr(os, "fsync", fsync)
    files.install_bundle(str(source))
    assert seen == [(b"new", False)]
    assert Path(unit.BUNDLE_PATH).read_bytes() == b"new"


def test_files_of_the_future_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock was set back after they were written; kproxyd would be older than they for as long as that."""
    for name in ("UNIT_PATH", "BUNDLE_PATH", "CONFIG_PATH"):
        path = tmp_path / name
        path.write_text("")
        os.utime(path, (1000.0, time.time() + 3600 if name == "BUNDLE_PATH" else 1000.0))
        monkeypatch.setattr(unit, name, str(path))
    assert files.last_written() == 1000.0
