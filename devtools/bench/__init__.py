"""`./dev bench`: what speed is promised, measured: sync (how fast Services get into the kernel), connect (how fast
connections are made). Figures of two ways of doing a thing come from one run that takes turns between them.
"""

from __future__ import annotations

import importlib
import signal
import sys

BENCHMARKS = ("sync", "connect")


def main(argv: list[str]) -> int:
    """Run one benchmark."""
    if not argv or argv[0] not in BENCHMARKS:
        print(f"usage: ./dev bench {{{','.join(BENCHMARKS)}}} ...", file=sys.stderr)
        return 2
    # Whoever ends a benchmark lets it clean up.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    module = importlib.import_module(f"devtools.bench.{argv[0]}")
    code: int = module.main(argv[1:])
    return code
