# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The folder that the bundle unpacked itself to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import unpacked


def test_all_that_was_unpacked_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut soon after the first start must not leave empty files, which no later start would replace."""
    own = tmp_path / ("kproxy.pyz_" + "a" * 64)
    collection = own / "site-packages" / "ansible_collections"
    collection.mkdir(parents=True)
    for path in (collection / "VERSION", own / "site-packages" / "module.py", tmp_path / "of-others"):
        path.write_text("x")
    written: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: written.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(unpacked, "_COLLECTION", collection / "kproxy")
    unpacked.write_through()
    assert sorted(written) == sorted(map(str, (own, *own.rglob("*"))))


def test_a_checkout_is_nobodys_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: pytest.fail("written through"))
    unpacked.write_through()
