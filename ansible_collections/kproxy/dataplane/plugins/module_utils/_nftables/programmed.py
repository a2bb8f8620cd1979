# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What our tables say, read back into words: by frontend, with the service port that each element is commented with."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    DNAT,
    DROP,
    REJECT,
    FrontendKey,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import (
    read_endpoint_value,
    read_frontend_key,
    slot_key,
    slot_prefix,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.mirror import Mirror
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import SetName


class ProgrammedFrontend(NamedTuple):
    """One frontend as the kernel has it.

    service: namespace/service:port. verdict: what outsiders get. endpoints and local_endpoints: (address, port) pairs
    of the Cluster and the Local policy.
    """

    key: FrontendKey
    service: str
    verdict: str
    endpoints: tuple[tuple[bytes, int], ...]
    local_endpoints: tuple[tuple[bytes, int], ...]


def programmed(mirror: Mirror, families: tuple[int, ...]) -> dict[FrontendKey, ProgrammedFrontend]:
    """Return every frontend that the elements hold."""
    found: dict[FrontendKey, ProgrammedFrontend] = {}
    for family in families:
        for prefix in ("", names.NODE_PORT):
            for map_name in (names.SERVICES, names.NO_ENDPOINTS):
                for raw, held in mirror.of(SetName(family, prefix + map_name)).items():
                    if isinstance(raw, bytes) and isinstance(held, tuple):
                        key = read_frontend_key(family, raw)
                        verdict = DNAT
                        if map_name == names.NO_ENDPOINTS:
                            verdict = DROP if held[0] == "drop" else REJECT
                        found[key] = ProgrammedFrontend(
                            key,
                            held[1],
                            verdict,
                            _endpoints(mirror, prefix, key, 0),
                            _endpoints(mirror, prefix, key, names.LOCAL_SLOTS),
                        )
    return found


def _endpoints(mirror: Mirror, prefix: str, key: FrontendKey, first: int) -> tuple[tuple[bytes, int], ...]:
    map_name = prefix + names.ENDPOINTS + names.protocol_suffix(key.protocol)
    held = mirror.of(SetName(key.family, map_name))
    start, slot = slot_prefix(key), first
    found: list[tuple[bytes, int]] = []
    while True:
        value = held.get(slot_key(start, slot))
        if not isinstance(value, bytes):
            return tuple(sorted(found))
        found.append(read_endpoint_value(value))
        slot += 1
