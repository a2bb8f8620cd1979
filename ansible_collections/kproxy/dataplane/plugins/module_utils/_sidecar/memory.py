# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Keep the resident memory small: what was loaded at start stays, so the collector need not visit it again."""

from __future__ import annotations

import ctypes
import gc
import os


def begin_loading() -> None:
    """Stop collecting while tens of thousands of objects arrive that all stay."""
    gc.disable()


def settle() -> None:
    """Collect once, set what is left aside, give free memory back to the system and collect rarely from now on."""
    gc.enable()
    gc.collect()
    gc.freeze()
    # The values hold no cycles; the collector only has to catch the occasional exception or closure.
    gc.set_threshold(20_000, 20, 50)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc; musl has nothing to trim
        trim(0)


def resident_bytes() -> int:
    """Return the resident set size of this process."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
