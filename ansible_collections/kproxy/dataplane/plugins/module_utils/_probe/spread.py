# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether connections were spread evenly over endpoints, with a bound on false alarms that holds exactly.

With k endpoints of equal chance, the number of n connections that one of them gets is binomial, B(n, 1/k). An endpoint
is judged by both tails of that distribution, computed exactly, and the bound is divided by the 2k tails that are looked
at (Bonferroni): the chance that an even spread is called uneven is at most the one asked for, for any n and k. A
chi-square test would only promise that for many connections per endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def at_most(count: int, draws: int, share: float) -> float:
    """Return the chance that a binomial variable is at most ``count``."""
    return math.fsum(
        math.comb(draws, number) * share**number * (1 - share) ** (draws - number) for number in range(count + 1)
    )


def at_least(count: int, draws: int, share: float) -> float:
    """Return the chance that a binomial variable is at least ``count``."""
    return math.fsum(
        math.comb(draws, number) * share**number * (1 - share) ** (draws - number) for number in range(count, draws + 1)
    )


def uneven(counts: Mapping[str, int], endpoints: Sequence[str], false_alarm: float) -> str:
    """Return what is uneven, empty if nothing is that an even spread would not do now and then.

    Args:
        counts: connections by the endpoint that got them.
        endpoints: those of equal chance. Others are not counted.
        false_alarm: the highest chance of calling an even spread uneven.
    """
    draws = sum(counts.get(endpoint, 0) for endpoint in endpoints)
    if len(endpoints) < 2 or not draws:
        return ""
    share, bound = 1 / len(endpoints), false_alarm / (2 * len(endpoints))
    for endpoint in endpoints:
        count = counts.get(endpoint, 0)
        chance = min(at_most(count, draws, share), at_least(count, draws, share))
        if chance < bound:
            return (
                f"{endpoint} got {count} of {draws} connections, {draws * share:.3g} would be even over"
                f" {len(endpoints)} endpoints (chance {chance:.1g})"
            )
    return ""


def notices_a_missing_one(endpoints: int, draws: int, false_alarm: float) -> bool:
    """Whether so many connections are enough to notice that one of the endpoints gets none."""
    return endpoints < 2 or (1 - 1 / endpoints) ** draws < false_alarm / (2 * endpoints)
