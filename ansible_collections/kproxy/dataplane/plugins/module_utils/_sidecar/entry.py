# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Where the bundle starts: one file, two programs, told apart by the name it was called by."""

from __future__ import annotations

import sys
from pathlib import Path

PROGRAMS = ("kproxyd", "kproxyctl")


def main() -> int:
    """Run kproxyd or kproxyctl: by the name of the link that was called, else by the first argument."""
    program = Path(sys.argv[0]).name
    if program not in PROGRAMS:
        if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
            sys.stderr.write(f"usage: {program} {{{'|'.join(PROGRAMS)}}} ...\n")
            return 2
        program = sys.argv.pop(1)
    # Imported only now: kproxyctl must not pay for the daemon's libraries.
    if program == "kproxyd":
        from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.main import main as kproxyd

        return kproxyd(sys.argv[1:])
    from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.main import main as kproxyctl

    return kproxyctl(sys.argv[1:])
