# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""After a switch to nftables: let the eBPF programs finish the connections that they translate, then remove them.

Run by a process of its own (`kproxyctl retire`), since kproxyd has no right to touch eBPF once it serves by nftables.
"""

from __future__ import annotations

import math
import time

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flows import collect
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import refusal_table
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane

CHECK_SECONDS = 5.0

#: How a retirement ends.
NOTHING, TAKEN_BACK, REMOVED = "nothing", "taken back", "removed"


def retire(root: str, pause_seconds: float = CHECK_SECONDS) -> str:
    """Drain what is pinned under a directory, wait until its last flow has ended, remove it; return how it ended.

    Call it once nftables serves. Sockets that were translated keep their connections without any program. Should the
    eBPF backend come back meanwhile, everything is left to it. Raises OSError, NoBpffs, Unsupported.
    """
    plane = Dataplane(root)
    try:
        with plane.locked(math.inf):
            if not plane.drain():
                return NOTHING
        while True:
            # There is time: whoever has the lock makes eBPF anew, or hangs, and then there is nothing to be done.
            with plane.locked(math.inf):
                if not plane.exists() or not plane.draining():
                    return TAKEN_BACK
                if not collect(plane).left:
                    plane.remove()
                    refusal_table.remove()
                    return REMOVED
            time.sleep(pause_seconds)
    finally:
        plane.close()
