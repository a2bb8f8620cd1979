# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the connections of one client to one address meet: how each went, where it was led, and as whom it is seen."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.choice import Goal
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import SENT, burst, within
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.judge import Met
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.packet_path import PacketPath
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.peers import peers
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.translation import Connection, led

REFUSAL_ATTEMPTS = 3


def meet(packet_path: PacketPath, goal: Goal, namespace: str, count: int, timeout: float) -> list[Met]:
    """Dial an address from a client, often at once, and return what each connection met. Raises DialError."""
    family = 6 if goal.family == "IPv6" else 4
    with burst(namespace, goal.address, goal.port, goal.protocol, count, timeout) as dialled, Conntrack() as table:
        ends = within(namespace, lambda: peers(goal.protocol, family))
        found = []
        for one in dialled:
            connection = Connection(goal.protocol, one.source, one.source_port, goal.address, goal.port)
            found.append(Met(one.result, *led(table, packet_path, connection, ends.get(one.inode))))
        return found


def meet_refusals(packet_path: PacketPath, goal: Goal, namespace: str, count: int, timeout: float) -> list[Met]:
    """The same where UDP should be refused: what met nothing is tried again, one after the other.

    The refusal is an ICMP error, and of these a kernel sends few to one destination: after a burst of six, one in
    net.ipv4.icmp_ratelimit milliseconds (a second by default; icmp(7)). Raises DialError.
    """
    found = []
    for first in meet(packet_path, goal, namespace, count, timeout):
        last = first
        for _attempt in range(REFUSAL_ATTEMPTS):
            if last.endpoint or last.result != SENT:
                break
            (last,) = meet(packet_path, goal, namespace, 1, timeout)
        found.append(last)
    return found
