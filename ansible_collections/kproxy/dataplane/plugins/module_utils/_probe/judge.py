# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether what connections met is what the service table says."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import REFUSED, SENT, SILENCE
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.spread import uneven

# What a fault is about, and what was judged.
VERDICT = "verdict"
SOURCE = "source"
HAIRPIN = "hairpin"
AFFINITY = "affinity"
SPREAD = "spread"


class Met(NamedTuple):
    """What one connection met.

    result: how it went. endpoint: where it was led, empty for nowhere. seen: the address that the endpoint sees, empty
    if not known. at_socket: led before the first packet, so that client and endpoint talk without a translation.
    """

    result: str
    endpoint: str = ""
    seen: str = ""
    at_socket: bool = False


def judge(expected: Mapping[str, Any], met: Met) -> str:
    """Return what is wrong with where a connection was led, empty if nothing is.

    An endpoint that refuses or does not answer proves the translation no less: the dataplane led the client there.

    Args:
        expected: the table's answer for this client, as ``kproxyctl trace`` gives it.
        met: what the connection met.
    """
    verdict, endpoint, result = expected["verdict"], met.endpoint, met.result
    if verdict == "dnat":
        endpoints = addresses(expected)
        if not endpoint:
            return f"was led nowhere ({result}), expected one of {_some(endpoints)}"
        if endpoint not in endpoints:
            return f"was led to {endpoint}, expected one of {_some(endpoints)}"
        return ""
    if endpoint and verdict in ("reject", "drop"):
        return f"was led to {endpoint}, expected {verdict}"
    if verdict == "reject" and result != REFUSED:
        return f"met {result}, expected to be refused at once: {expected['reason']}"
    if verdict == "drop" and result not in (SILENCE, SENT):
        return f"was {result}, expected silence: {expected['reason']}"
    return ""


def judge_source(expected: Mapping[str, Any], met: Met, source: str, node_addresses: Collection[str]) -> str | None:
    """Return what is wrong with the client that the endpoint sees, None if it cannot be told.

    Args:
        expected: the table's answer for this client.
        met: what the connection met.
        source: the client's own address.
        node_addresses: those of this node, one of which a masqueraded client shows.
    """
    entry = next((entry for entry in expected["endpoints"] if entry["address"] == met.endpoint), None)
    if entry is None or not met.seen:
        return None
    if entry["masqueraded"]:
        # Masquerading leads the answer back to the node that translated; at a socket nothing has to be undone.
        if met.seen in node_addresses or (met.at_socket and met.seen == source):
            return ""
        return f"is seen by {met.endpoint} as {met.seen}, expected an address of this node"
    # The node has several addresses. A socket that is led to the endpoint shows the one towards that.
    if met.seen == source or (met.at_socket and {met.seen, source} <= set(node_addresses)):
        return ""
    return f"is seen by {met.endpoint} as {met.seen}, expected its own address {source}: who masquerades it?"


def judge_hairpin(met: Met, source: str) -> str | None:
    """Return what is wrong with a client that was led to itself, None if it was not.

    A kernel drops what comes from an address of its own, so a client that is led to itself and not masqueraded gets no
    answer. Silence over UDP says nothing.
    """
    host = met.endpoint.rpartition(":")[0].strip("[]")
    if not host or ipaddress.ip_address(host) != ipaddress.ip_address(source) or met.result == SENT:
        return None
    return f"was led to itself ({met.endpoint}) and got no answer" if met.result == SILENCE else ""


def judge_affinity(endpoints: Sequence[str]) -> str:
    """Return what is wrong with where connections of one client were led under session affinity."""
    found = sorted({endpoint for endpoint in endpoints if endpoint})
    if len(found) < 2:
        return ""
    return (
        f"was led to {len(found)} endpoints in {len(endpoints)} connections ({_some(found)}), expected one (affinity)"
    )


def judge_spread(endpoints: Sequence[str], met: Sequence[str], false_alarm: float) -> str:
    """Return what is uneven about where connections were led, with a bound on the chance of a false alarm."""
    return uneven(Counter(met), endpoints, false_alarm)


def addresses(expected: Mapping[str, Any]) -> list[str]:
    """Return the endpoints that the table would lead to."""
    return sorted(entry["address"] for entry in expected["endpoints"])


def _some(endpoints: list[str]) -> str:
    shown = ", ".join(endpoints[:5])
    return f"{shown} and {len(endpoints) - 5} more" if len(endpoints) > 5 else shown
