# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""After a switch to nftables: let the eBPF programs finish the connections that they translate, then remove them."""

from __future__ import annotations

import logging
import threading
import time

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flows
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import refusal_table
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap

LOG = logging.getLogger("kproxyd")

CHECK_SECONDS = 5.0


def retire(root: str) -> bool:
    """Start to drain what is pinned under a directory, if anything is; call after nftables has taken over.

    Sockets that were translated keep their connections without us. Flows on the wire are translated until the last one
    has ended; a thread looks for that and removes everything then. Raises OSError.
    """
    plane = Dataplane(root)
    if not plane.drain():
        return False
    threading.Thread(target=_finish, args=(plane,), name="ebpf-retirement", daemon=True).start()
    return True


def _finish(plane: Dataplane) -> None:
    try:
        while remaining(plane):
            time.sleep(CHECK_SECONDS)
        plane.remove()
        refusal_table.remove()
    except OSError as error:
        LOG.warning("the eBPF programs of the former backend stay attached: %s", error)


def remaining(plane: Dataplane) -> int:
    """Remove flow entries that have ended; return how many are left."""
    return sum(_collect(plane.maps["flows%d" % family]) for family in (4, 6))


def _collect(opened: BpfMap) -> int:
    now, held = time.monotonic_ns(), opened.dump()
    ended = [key for key, value in held.items() if flows.expired(flows.unpack_flow(key, value), now)]
    opened.delete(ended)
    return len(held) - len(ended)
