# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Pins of clients to endpoints (ClientIP affinity) that count no more.

The programs do not follow them: a pin counts while its endpoint is a member of the set. But affinity may be switched on
again, or an endpoint come back, within the pin's time; and then kube-proxy and our nftables tables have forgotten.
"""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.books import Books
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane

_FAMILIES = (4, 6)


def forget_pins(plane: Dataplane, books: Books) -> int:
    """Remove what counts no more, once the maps say what the books say; return how many. Raises OSError.

    A packet that is on its way meanwhile may renew a pin behind us: that one client keeps its endpoint.
    """
    removed = 0
    for family in _FAMILIES:
        opened, pinned = plane.maps["affinity%d" % family], books.pinned(family)
        gone = []
        for key, value in opened.dump().items():
            service, endpoint = layout.unpack_pin(key, value)
            if service not in pinned or not pinned[service].pins_to(endpoint):
                gone.append(key)
        opened.delete(gone)
        removed += len(gone)
    return removed
