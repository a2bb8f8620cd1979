# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the connections of one client to one address meet: how each went, where it was led, and as whom it is seen."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_watch import NewFlows
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NUMBERS
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.choice import Goal
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.dial import REFUSED, SENT, burst, within
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.judge import Met
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.packet_path import PacketPath
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.peers import peers
from ansible_collections.kproxy.dataplane.plugins.module_utils._probe.translation import (
    Connection,
    Led,
    led,
    led_before_it_ended,
)

REFUSAL_ATTEMPTS = 3


def meet(packet_path: PacketPath, goal: Goal, namespace: str, count: int, timeout: float) -> list[Met]:
    """Dial an address from a client, often at once, and return what each connection met. Raises DialError."""
    family = 6 if goal.family == "IPv6" else 4
    with NewFlows() as flows, burst(namespace, goal.address, goal.port, goal.protocol, count, timeout) as dialled:
        ends = within(namespace, lambda: peers(goal.protocol, family))
        # An endpoint that refuses ends the connection, and with it most of what told where it was led.
        ended = {one.inode for one in dialled if one.result == REFUSED and one.inode not in ends}
        begun = flows.read(NUMBERS[goal.protocol]) if ended else {}
        sockets = packet_path.led_sockets(family) if ended else {}
        found = []
        with Conntrack() as table:
            for one in dialled:
                connection = Connection(goal.protocol, one.source, one.source_port, goal.address, goal.port)
                where = Led()
                if one.inode in ended:
                    where = led_before_it_ended(begun, sockets, connection, one.cookie)
                if not where.endpoint:
                    where = led(table, packet_path, connection, ends.get(one.inode))
                found.append(Met(one.result, *where))
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
