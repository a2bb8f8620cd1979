# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What maps say, in words of the service table: for diffs, check mode and people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey

_VERDICTS = {layout.DNAT: "dnat", layout.REJECT: "reject", layout.DROP: "drop", layout.ELSEWHERE: "elsewhere"}
LiveMaps = Mapping[str, Mapping[bytes, bytes]]


class MapRow(NamedTuple):
    """One frontend as the maps have it. number: of its service port; endpoints in slot order."""

    number: int
    verdict: str
    endpoints: tuple[tuple[bytes, int], ...]
    local_endpoints: tuple[tuple[bytes, int], ...]
    affinity_seconds: int
    source_ranges: bool
    maglev: bool


def read_rows(live: LiveMaps) -> dict[FrontendKey, MapRow]:
    """Return every frontend in frontends4/6 with what slots4/6 hold for it."""
    found: dict[FrontendKey, MapRow] = {}
    for family in (4, 6):
        slots = live.get("slots%d" % family, {})
        for key, data in live.get("frontends%d" % family, {}).items():
            ip, protocol, port = layout.unpack_frontend_key(key)
            value = layout.FrontendValue.unpack(data)
            found[FrontendKey(family, ip, protocol, port)] = MapRow(
                value.service,
                _VERDICTS.get(value.answers[layout.OUTSIDER] & layout.VERDICT_MASK, "unknown"),
                _endpoints(slots, value.service, False, value.count_cluster),
                _endpoints(slots, value.service, True, value.count_local),
                value.affinity_seconds,
                bool(value.flags & layout.FRONTEND_RANGES),
                bool(value.flags & layout.FRONTEND_MAGLEV),
            )
    return found


def _endpoints(
    slots: Mapping[bytes, bytes], number: int, local_only: bool, count: int
) -> tuple[tuple[bytes, int], ...]:
    found = []
    for slot in range(count):
        data = slots.get(layout.slot_key(layout.set_number(number, local_only), slot))
        if data is not None:
            found.append(layout.unpack_endpoint(data)[:2])
    return tuple(found)
