"""Compare what connections came to with what a probe expects. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from devtools.conformance.corpus import Probe, SocketAddress
from devtools.conformance.observation import ANSWERED, FAILED, REJECTED, SILENT, Observation

History = dict[str, dict[int, SocketAddress]]
"""By probe id: which endpoint each client got."""

SOCKET_KINDS = ("node", "pod-local")
"""Clients whose sockets are made on the node under test."""

SKEW_DEVIATIONS = 5.0
"""How far from an equal share, in standard deviations, a count may be. With few connections no count can be."""


@dataclass(frozen=True)
class Circumstances:
    """What the judge has to know beside the probe."""

    node_addresses: Collection[str]
    spread: bool = True
    """Whether enough connections were free to choose that every endpoint has to show up."""
    unserved: Collection[tuple[str, int, str]] = field(default=())
    """Destinations on which the runner does not listen, because the product may: there a refusal is a pass."""
    needless_masquerade: bool = False
    """The backend translates at the socket: no packet has to come back by the node to be translated again."""


def judge(
    probe: Probe, seen: Sequence[Observation], history: Mapping[str, Mapping[int, SocketAddress]], at: Circumstances
) -> list[str]:
    """Return what is wrong, one sentence each: got and wanted. Empty: all as expected."""
    if not seen:
        return ["got no connection at all"]
    verdict = probe.expect.verdict
    if verdict == "pass":
        wrong = [one for one in seen if not _passed(probe, one, at)]
    elif verdict == "reject":
        wrong = [one for one in seen if one.outcome != REJECTED]
    elif verdict == "drop":
        wrong = [one for one in seen if one.outcome != SILENT]
    else:
        return _judge_endpoints(probe, seen, history, at)
    return [f"got {describe(wrong)}, wanted {verdict}"] if wrong else []


def describe(seen: Sequence[Observation]) -> str:
    """Say in a few words what connections came to."""
    counts = Counter(_word(one) for one in seen)
    return ", ".join(f"{word} ({count}x)" if count > 1 else word for word, count in counts.most_common(6))


def _word(one: Observation) -> str:
    if one.outcome == ANSWERED:
        if one.server is None:
            return "an echo"
        return f"answer of {one.server}" + ("" if one.source_kept else f" masqueraded as {one.source}")
    words = {REJECTED: "reject", SILENT: "silence", FAILED: "failure"}
    return words[one.outcome] + (f" {one.detail}" if one.outcome == FAILED else "")


def _passed(probe: Probe, one: Observation, at: Circumstances) -> bool:
    if one.outcome == REJECTED:
        return (probe.to.ip, probe.to.port, probe.to.protocol) in at.unserved
    if one.outcome != ANSWERED:
        return False
    if one.server is None:
        return probe.to.protocol == "ICMP"
    return one.server == SocketAddress(probe.to.ip, probe.to.port) and one.source_kept


def _judge_endpoints(
    probe: Probe, seen: Sequence[Observation], history: Mapping[str, Mapping[int, SocketAddress]], at: Circumstances
) -> list[str]:
    expect = probe.expect
    wanted = f"{expect.verdict} to {_join(expect.endpoints)}"
    strays = [one for one in seen if one.outcome != ANSWERED or one.server not in expect.endpoints]
    if strays:
        return [f"got {describe(strays)}, wanted {wanted}"]
    problems = []
    chosen = Counter(one.server for one in seen if one.server is not None)
    if at.spread:
        problems += _judge_spread(expect.endpoints, expect.groups, chosen)
    elif expect.groups and not any(set(chosen) <= set(group) for group in expect.groups):
        problems.append(f"got endpoints {_join(chosen)}, wanted one group of {_groups(expect.groups)}")
    if expect.verdict == "dnat":
        problems += _judge_masquerade(probe, seen, at)
    problems += _judge_pins(probe, seen, history)
    return problems


def _judge_spread(
    endpoints: Sequence[SocketAddress], groups: Sequence[Sequence[SocketAddress]], chosen: Mapping[SocketAddress, int]
) -> list[str]:
    if groups:
        inside = [group for group in groups if set(chosen) <= set(group)]
        if not inside:
            return [f"got endpoints {_join(chosen)}, wanted one group of {_groups(groups)}"]
        endpoints = inside[0]
    missing = [endpoint for endpoint in endpoints if endpoint not in chosen]
    total = sum(chosen.values())
    if missing:
        return [f"got only {_join(chosen)} in {total} connections, wanted also {_join(missing)}"]
    if skew(endpoints, chosen) > SKEW_DEVIATIONS:
        counts = ", ".join(f"{endpoint} {count}" for endpoint, count in sorted(chosen.items()))
        return [f"got uneven shares of {total} connections: {counts}, wanted equal chance"]
    return []


def skew(endpoints: Collection[SocketAddress], chosen: Mapping[SocketAddress, int]) -> float:
    """Return by how many standard deviations the least equal count misses an equal share."""
    total, share = sum(chosen.values()), 1 / len(endpoints)
    deviation = math.sqrt(total * share * (1 - share))
    if not deviation:
        return 0.0
    return max(abs(chosen.get(endpoint, 0) - total * share) for endpoint in endpoints) / deviation


def _judge_masquerade(probe: Probe, seen: Sequence[Observation], at: Circumstances) -> list[str]:
    problems: dict[str, None] = {}
    for one in seen:
        server, source = one.server, one.source
        if server is None or source is None or probe.expect.masquerade is None:
            continue
        to_itself = server.ip == probe.client.ip
        if probe.expect.masquerade[server]:
            if one.source_kept and not (at.needless_masquerade and probe.client.kind in SOCKET_KINDS):
                problems[f"{server} saw the client's own {source}, wanted masquerade"] = None
            elif not one.source_kept and source not in at.node_addresses:
                problems[f"{server} saw {source}, wanted an address of the node"] = None
        elif not one.source_kept and not (to_itself and source in at.node_addresses):
            # Its own kernel discards a packet from its own address, so there masquerading is accepted as well.
            problems[f"{server} saw {source}, wanted the client's own {probe.client.ip}"] = None
    return list(problems)


def needless_masquerades(probe: Probe, seen: Sequence[Observation], at: Circumstances) -> int:
    """How many connections of this node's sockets were accepted unmasqueraded although the case wants masquerade."""
    wanted = probe.expect.masquerade
    if not at.needless_masquerade or wanted is None or probe.client.kind not in SOCKET_KINDS:
        return 0
    return sum(one.source_kept and wanted.get(one.server, False) for one in seen if one.server is not None)


def _judge_pins(
    probe: Probe, seen: Sequence[Observation], history: Mapping[str, Mapping[int, SocketAddress]]
) -> list[str]:
    problems = []
    expect = probe.expect
    now = {one.client: one.server for one in seen if one.server is not None}
    if expect.same_as is not None:
        before = history[expect.same_as]
        moved = [client for client, server in now.items() if client in before and before[client] != server]
        if moved:
            client = moved[0]
            problems.append(
                f"got {now[client]} after {before[client]} for {len(moved)} of {len(now)} clients, "
                f"wanted the same endpoint as {expect.same_as}"
            )
    if expect.independent_of is not None and len(expect.endpoints) > 1:
        before = history[expect.independent_of]
        common = [client for client in now if client in before]
        # A single client may get the same endpoint by chance; two dozen may not.
        if len(common) >= 8 and all(now[client] == before[client] for client in common):
            problems.append(f"got the endpoint of {expect.independent_of} for all clients, wanted a free choice")
    wrong_timeouts = {one.affinity_seconds for one in seen if one.affinity_seconds is not None} - {
        expect.affinity_seconds
    }
    if expect.affinity_seconds is not None and wrong_timeouts:
        problems.append(f"got a pin of {wrong_timeouts} seconds, wanted {expect.affinity_seconds}")
    return problems


def _join(addresses: Collection[SocketAddress]) -> str:
    return ", ".join(str(address) for address in addresses)


def _groups(groups: Sequence[Sequence[SocketAddress]]) -> str:
    return " | ".join(_join(group) for group in groups)
