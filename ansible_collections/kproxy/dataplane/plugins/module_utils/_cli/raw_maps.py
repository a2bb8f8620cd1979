# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The eBPF maps as they are in the kernel, for `kproxyctl backends --raw`; needs no daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.states import MapRow, read_rows
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_socket_address


def read(directory: str) -> list[dict[str, Any]] | None:
    """Return every frontend in the maps pinned under a directory; None if nothing is. Raises OSError."""
    plane = Dataplane(directory)
    if not plane.exists():
        return None
    plane.adopt()
    try:
        return documents(read_rows(plane.read(("frontends4", "frontends6", "slots4", "slots6"))))
    finally:
        plane.close()


def documents(rows: Mapping[FrontendKey, MapRow]) -> list[dict[str, Any]]:
    """Return one document per frontend, in the order of their addresses."""
    return [
        {
            "frontend": str(key),
            "number": row.number,
            "verdict": row.verdict,
            "endpoints": [format_socket_address(*endpoint) for endpoint in row.endpoints],
            "localEndpoints": [format_socket_address(*endpoint) for endpoint in row.local_endpoints],
            "affinitySeconds": row.affinity_seconds,
            "sourceRanges": row.source_ranges,
            "maglev": row.maglev,
        }
        for key, row in sorted(rows.items())
    ]
