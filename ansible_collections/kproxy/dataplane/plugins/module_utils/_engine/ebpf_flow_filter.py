# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Building the filter in front of the flow tables anew, while programs enter flows and ask it.

Programs set the byte of a flow that they enter in both arrays, and read one. So the other one can be made to say what
it must, and then be read. A run of a program that has begun before a wait is over after it, which is all that the proof
needs: a run that enters a flow is over before the tables are read, and then the flow is found there, or it begins after
the clearing, and then its bytes stay; a run that reads has either ended before the clearing, or reads the array in use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flow_filter import SLOTS, slot_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_flow_filter import FlowFilter

#: Slots that may be set without need before they are cleared: every sixteenth connection is looked up in vain.
NEEDLESS_SLOTS = SLOTS // 16
_FAMILIES = (4, 6)


def rebuild(held: FlowFilter, keys: Callable[[], Iterable[bytes]]) -> None:
    """Make the array that is not in use say what the flow tables hold, then use it.

    keys: reads the keys of the flow tables. Raises OSError.
    """
    other = 1 - held.array
    if held.in_use:
        held.wait()
    held.clear(other)
    held.wait()
    held.mark(other, map(slot_of, keys()))
    held.wait()
    held.read_from(other)


def keep_filter(plane: Dataplane, entries: int = SLOTS) -> bool:
    """Let programs ask the filter, and build it anew if too many of its slots stand for nothing; whether it was built.

    entries: how many there are of flows4/6; without, a filter in use is left alone. Nothing is done while programs of
    another version may run, which set no bytes. Raises OSError, and then programs go on as before.
    """
    if plane.former():
        return False
    with FlowFilter(plane.maps["flow_filter"]) as held:
        if held.in_use and held.filled() <= entries + NEEDLESS_SLOTS:
            return False
        rebuild(held, lambda: _keys(plane))
    return True


def _keys(plane: Dataplane) -> Iterable[bytes]:
    for family in _FAMILIES:
        yield from plane.maps["flows%d" % family].dump()
