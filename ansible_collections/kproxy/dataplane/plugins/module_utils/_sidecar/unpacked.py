# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The place where the bundle unpacked itself: which version this is, and what older versions left behind."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

_COLLECTION = Path(__file__).resolve().parents[3]
# shiv names the folder of each version FILE_DIGEST, and locks it by .FILE_DIGEST_lock while unpacking.
_FOLDER = re.compile(r"\.?kproxy[^/]*\.pyz_[0-9a-f]{64}(_lock)?")


def version() -> str:
    """Return the bundle's version, or "checkout" when it runs from the sources."""
    try:
        return (_COLLECTION / "VERSION").read_text(encoding="utf-8").strip()
    except OSError:
        return "checkout"


def remove_other_versions() -> list[str]:
    """Delete what other versions unpacked beside this one; returns what was removed. Never raises OSError."""
    own = next((parent for parent in _COLLECTION.parents if _FOLDER.fullmatch(parent.name)), None)
    removed = []
    if own is not None:
        with contextlib.suppress(OSError):
            for path in sorted(own.parent.iterdir()):
                if _FOLDER.fullmatch(path.name) and path.name not in (own.name, f".{own.name}_lock"):
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink()
                    removed.append(path.name)
    return removed
