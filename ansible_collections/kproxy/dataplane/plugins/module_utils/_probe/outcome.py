# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with all that one client met at one address, by what it is about."""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._probe import judge
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.choice import Goal
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import SILENCE
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.judge import Met
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.spread import notices_a_missing_one


def judged(
    goal: Goal, expected: Mapping[str, Any], met: Sequence[Met], source: str, own: Collection[str]
) -> dict[str, Any]:
    """Return what was judged, and what is wrong, each sentence once; all but the spread.

    Args:
        goal: what was dialled.
        expected: the table's answer for this client.
        met: what each connection met.
        source: the client's own address.
        own: addresses of this node.
    """
    verdicts = [judge.judge(expected, one) for one in met]
    sources = [judge.judge_source(expected, one, source, own) for one in met]
    hairpins = [judge.judge_hairpin(one, source) for one in met]
    found: dict[str, list[str]] = {judge.VERDICT: verdicts}
    for about, said in ((judge.SOURCE, sources), (judge.HAIRPIN, hairpins)):
        if any(one is not None for one in said):
            found[about] = [one or "" for one in said]
    if goal.affinity and expected["verdict"] == "dnat" and len(expected["endpoints"]) > 1 and len(met) > 1:
        found[judge.AFFINITY] = [judge.judge_affinity([one.endpoint for one in met])]
    return {
        "judged": list(found),
        "faults": [
            {"about": about, "message": message}
            for about, said in found.items()
            for message in dict.fromkeys(filter(None, said))
        ],
    }


def silent(goal: Goal, met: Sequence[Met]) -> list[str]:
    """Return the endpoints that answered none of the connections led to them, not even by a refusal.

    Led they were all the same: the way to the endpoint and back is what does not work, or the endpoint itself. A
    datagram may well have no answer.
    """
    if goal.protocol == "UDP":
        return []
    answered = {one.endpoint for one in met if one.result != SILENCE}
    return sorted({one.endpoint for one in met if one.endpoint} - answered)


def spreads(goal: Goal, expected: Mapping[str, Any]) -> bool:
    """Whether the connections of one client are led to several endpoints of equal chance."""
    return expected["verdict"] == "dnat" and not goal.affinity and len(expected["endpoints"]) > 1


def judge_spreads(results: Sequence[MutableMapping[str, Any]], false_alarm: float) -> None:
    """Add to those results that are meant for it what is uneven about them.

    Args:
        results: each with ``for_spread``, which is taken out, ``endpoints`` and ``met``.
        false_alarm: highest chance that any of them is called uneven without being it.
    """
    wanted = [result for result in results if result.pop("for_spread")]
    for result in wanted:
        share = false_alarm / len(wanted)
        message = judge.judge_spread(result["endpoints"], result["met"], share)
        result["judged"].append(judge.SPREAD)
        result["spread_suffices"] = notices_a_missing_one(len(result["endpoints"]), len(result["met"]), share)
        if message:
            result["faults"].append({"about": judge.SPREAD, "message": message})
