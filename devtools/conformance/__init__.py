"""Run the conformance corpus: ``./dev conformance --backend nft|ebpf|model [PATH...]``."""

from __future__ import annotations

from devtools.conformance.command import main

__all__ = ["main"]
