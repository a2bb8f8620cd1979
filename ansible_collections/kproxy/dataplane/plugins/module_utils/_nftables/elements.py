# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From a row of the service table to the elements it owns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    CLUSTER,
    CLUSTER_IP,
    DNAT,
    DROP,
    LOCAL,
    NODE_PORT,
    REJECT,
    Frontend,
    Target,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables import names
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.keys import (
    frontend_key,
    hairpin_key,
    slot_prefix,
    source_range_key,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Element, Key
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint

REFUSE = "goto refuse"

#: Endpoint maps by protocol.
ENDPOINT_MAPS = {protocol: names.ENDPOINTS + names.protocol_suffix(protocol) for protocol in NAMES}
_NODE_PORT_ENDPOINT_MAPS = {protocol: names.NODE_PORT + name for protocol, name in ENDPOINT_MAPS.items()}


class SlotSpace(NamedTuple):
    """A run of slots: key prefix in an endpoint map, first slot, and who has to sit there."""

    map_name: str
    prefix: bytes
    first: int
    endpoints: Sequence[Endpoint]


class RowElements(NamedTuple):
    """The elements of one row.

    own: elements whose keys no other row has, with their set. shared: keys that other rows may need as well, with their
    set, counted by whoever plans.
    """

    own: list[tuple[str, Element]]
    slots: list[SlotSpace]
    shared: list[tuple[str, Key]]


NOTHING = RowElements([], [], [])
#: Makes a named tuple from a tuple. The constructor by fields takes three times as long, twice for every row.
_make = tuple.__new__


def row_elements(row: Frontend) -> RowElements:
    """Return the elements that put a row in force."""
    # Taken apart at once: a named tuple's field costs a call each time it is asked for by name.
    key, kind, name, cluster, local, on_node, outsiders, _pods, _node, source_ranges, affinity_seconds, loopback = row
    _family, ip, protocol, _port = key
    node_port = kind == NODE_PORT
    prefix = names.NODE_PORT if node_port else ""
    raw = frontend_key(key)
    comment = names.service_port_comment(name)
    short_circuited = kind != CLUSTER_IP and row.short_circuited
    own: list[tuple[str, Element]]
    if outsiders[0] == DNAT:
        if affinity_seconds:
            verdict = _pinned(row, outsiders, node_port)
        else:
            endpoint_set = outsiders[1]
            count = min(len(local if endpoint_set == LOCAL else cluster), names.MAX_SLOTS)
            verdict = goto_pick(_mark_of(kind, outsiders), count, endpoint_set, node_port)
        own = [(prefix + names.SERVICES, (raw, verdict, comment))]
    else:
        verdict = REFUSE if outsiders[0] == REJECT else DROP
        own = [(prefix + names.NO_ENDPOINTS, (raw, verdict, comment))]
        if short_circuited and not node_port:
            # The address is taken although outsiders get nothing: a NodePort of the same number stands behind it.
            own.append((names.SERVICES, (raw, "accept", comment)))
    if short_circuited:
        own.append((prefix + names.SHORT_CIRCUIT, (raw, _short_circuit(row, node_port), comment)))
    if affinity_seconds:
        own += _affinity(row, raw, prefix, comment)
    shared: list[tuple[str, Key]] = [(names.CLUSTER_IPS, ip)] if kind == CLUSTER_IP else []
    if on_node:
        shared += [(names.HAIRPIN, hairpin_key(endpoint, protocol)) for endpoint in on_node]
    if source_ranges is not None:
        own.append((names.SOURCE_RESTRICTED, (raw, None, None)))
        own += [(names.ALLOWED_SOURCES, (source_range_key(key, *ends), None, None)) for ends in source_ranges]
    if loopback == REJECT:
        own.append((names.LOOPBACK_NODE_PORTS, (raw, None, None)))
    slots: list[SlotSpace] = []
    if cluster or local:
        map_name = (_NODE_PORT_ENDPOINT_MAPS if node_port else ENDPOINT_MAPS)[protocol]
        start = slot_prefix(key)
        if cluster:
            slots = [_make(SlotSpace, (map_name, start, 0, _slotted(cluster)))]
        if local:
            slots.append(_make(SlotSpace, (map_name, start, names.LOCAL_SLOTS, _slotted(local))))
    return _make(RowElements, (own, slots, shared))


def pick_chain(count: int, endpoint_set: str, node_port: bool) -> str:
    """Return the chain that picks one of count endpoints."""
    return "%s%s%s-%d" % (
        names.NODE_PORT if node_port else "",
        names.PICK,
        "-local" if endpoint_set == LOCAL else "",
        count,
    )


def marked_chain(mark: str, pick: str) -> str:
    """Return the chain that marks for masquerading by the rules of `mark` and goes on to a pick chain."""
    return "%s-%s" % (mark, pick)


def pinned_chain(row: Frontend, endpoint_set: str) -> str:
    """Return the chain that looks a client's pin up before an endpoint is picked."""
    return "pinned%s-%s" % ("-local" if endpoint_set == LOCAL else "", names.affinity_id(row.service_port))


def learn_chain(row: Frontend) -> str:
    """Return the chain that records a client's pin."""
    return "learn-%s" % names.affinity_id(row.service_port)


def _mark_of(kind: str, target: Target) -> str:
    """Return how connections of a row are marked: a cluster IP by who dials, else by the target alone."""
    if kind == CLUSTER_IP:
        return names.CLUSTER_IP
    return names.EXTERNAL if target.masquerade else ""


def _pinned(row: Frontend, target: Target, node_port: bool) -> str:
    mark = _mark_of(row.kind, target)
    if not mark:
        return "goto " + pinned_chain(row, target.endpoint_set)
    return "goto %s%s-affinity" % (names.NODE_PORT if node_port else "", mark)


def _short_circuit(row: Frontend, node_port: bool) -> str:
    # The node's connections are masqueraded, those of pods are not: the chain tells them apart.
    if row.affinity_seconds:
        return "goto %s%s-affinity" % (names.NODE_PORT if node_port else "", names.SHORT_CIRCUITED)
    return goto_pick(names.SHORT_CIRCUITED, len(_slotted(row.cluster_endpoints)), CLUSTER, node_port)


@lru_cache(maxsize=4096)
def goto_pick(mark: str, count: int, endpoint_set: str, node_port: bool) -> str:
    """Return the verdict that picks one of count endpoints; the same object for the same verdict, to save memory."""
    chain = pick_chain(count, endpoint_set, node_port)
    return "goto %s" % (marked_chain(mark, chain) if mark else chain)


def _affinity(row: Frontend, raw: bytes, prefix: str, comment: str) -> list[tuple[str, Element]]:
    """Return what leads from the chains that mark to the pins of a service port, and from there to a fresh pick."""
    own: list[tuple[str, Element]] = []
    node_port = bool(prefix)
    targets = [target for target in (row.outsiders, row.pods, row.node) if target.verdict == DNAT]
    marked = [target for target in targets if row.short_circuited or _mark_of(row.kind, target)]
    if marked:
        endpoint_set = CLUSTER if row.short_circuited else marked[0].endpoint_set
        own.append((prefix + names.AFFINITY, (raw, "goto " + pinned_chain(row, endpoint_set), comment)))
    used = {target.endpoint_set for target in targets}
    for endpoint_set, map_name in ((CLUSTER, names.UNPINNED), (LOCAL, names.UNPINNED_LOCAL)):
        if endpoint_set in used:
            count = len(_slotted(row.local_endpoints if endpoint_set == LOCAL else row.cluster_endpoints))
            own.append((prefix + map_name, (raw, "goto " + pick_chain(count, endpoint_set, node_port), comment)))
    if used:
        own.append((prefix + names.LEARN_AFFINITY, (raw, "goto " + learn_chain(row), comment)))
    return own


def _slotted(endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return the endpoints that get a slot: either policy has room for so many, the rest serve nobody."""
    return endpoints if len(endpoints) <= names.MAX_SLOTS else endpoints[: names.MAX_SLOTS]
