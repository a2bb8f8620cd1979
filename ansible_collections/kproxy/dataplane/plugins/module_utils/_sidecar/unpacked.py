# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The place where the bundle unpacked itself: which version this is, and what older versions left behind."""

from __future__ import annotations

import contextlib
import os
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


def write_through() -> None:
    """Have on the disk what was unpacked. Never raises OSError.

    Once the folder is there, nothing is unpacked again: after a power cut, files that were still to be written would be
    empty at every start. Costs nothing where all is written already.
    """
    own = _own_folder()
    for folder, _folders, names in os.walk(own) if own is not None else ():
        for path in (*(os.path.join(folder, name) for name in names), folder):
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def _own_folder() -> Path | None:
    return next((parent for parent in _COLLECTION.parents if _FOLDER.fullmatch(parent.name)), None)


def remove_other_versions() -> list[str]:
    """Delete what other versions unpacked beside this one; returns what was removed. Never raises OSError."""
    own = _own_folder()
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
