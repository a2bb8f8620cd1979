# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which endpoint sits in which slot: keep what can stay, so that a change of one endpoint writes a few elements."""

from __future__ import annotations

from collections.abc import Sequence


def assign(held: Sequence[bytes], wanted: Sequence[bytes]) -> list[bytes]:
    """Return wanted in slot order, moving as little as possible away from held.

    What has to move and what is new fills the holes in the order of wanted, which has no repeats.
    """
    if not held:
        return list(wanted)
    missing = set(wanted)
    slots: list[bytes | None] = []
    for value in held[: len(wanted)]:
        if value in missing:
            missing.discard(value)
            slots.append(value)
        else:
            slots.append(None)
    slots.extend([None] * (len(wanted) - len(slots)))
    newcomers = iter([value for value in wanted if value in missing])
    return [value if value is not None else next(newcomers) for value in slots]
