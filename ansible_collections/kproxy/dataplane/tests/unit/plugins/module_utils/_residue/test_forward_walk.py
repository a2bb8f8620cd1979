# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a filter table does to forwarded Service traffic."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.forward_walk import Packet, outcomes
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import parse

HEAD = ":FORWARD DROP [0:0]\n:A - [0:0]\n:B - [0:0]\n"
KNOWN = Packet("203.0.113.7", "10.244.2.111", "tcp", 8080)
ROWS = [
    ("policy", "", KNOWN, {"drop"}),
    ("accept all", "-A FORWARD -j ACCEPT\n", KNOWN, {"accept"}),
    ("destination", "-A FORWARD -d 10.244.0.0/16 -j ACCEPT\n", KNOWN, {"accept"}),
    ("other destination", "-A FORWARD -d 10.99.0.0/16 -j ACCEPT\n", KNOWN, {"drop"}),
    ("negated source", "-A FORWARD ! -s 10.244.0.0/16 -j ACCEPT\n", KNOWN, {"accept"}),
    ("unknown destination", "-A FORWARD -d 10.244.0.0/16 -j ACCEPT\n", Packet(), {"accept", "drop"}),
    ("any address is no question", "-A FORWARD -d 0.0.0.0/0 -j ACCEPT\n", Packet(), {"accept"}),
    ("port", "-A FORWARD -p tcp -m tcp --dport 8000:9000 -j ACCEPT\n", KNOWN, {"accept"}),
    ("ports", "-A FORWARD -p tcp -m multiport --dports 22,80 -j ACCEPT\n", KNOWN, {"drop"}),
    ("protocol", "-A FORWARD -p udp -j ACCEPT\n", KNOWN, {"drop"}),
    (
        "established does not help a new one",
        "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n",
        KNOWN,
        {"drop"},
    ),
    ("translated", "-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT\n", KNOWN, {"accept"}),
    ("mark", "-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n", KNOWN, {"accept"}),
    ("interface", "-A FORWARD -i wg0 -j ACCEPT\n", KNOWN, {"accept", "drop"}),
    ("into a chain and back", "-A FORWARD -j A\n-A FORWARD -j ACCEPT\n-A A -j RETURN\n", KNOWN, {"accept"}),
    ("two chains deep", "-A FORWARD -j A\n-A A -j B\n-A B -j ACCEPT\n", KNOWN, {"accept"}),
    ("goto does not come back", "-A FORWARD -g A\n-A FORWARD -j ACCEPT\n", KNOWN, {"drop"}),
    ("reject", "-A FORWARD -j REJECT --reject-with icmp-port-unreachable\n", KNOWN, {"drop"}),
    ("log decides nothing", "-A FORWARD -j LOG\n-A FORWARD -j ACCEPT\n", KNOWN, {"accept"}),
    ("comment", '-A FORWARD -m comment --comment "-d 1.2.3.4 -j DROP" -j ACCEPT\n', KNOWN, {"accept"}),
    ("unknown match in a chain", "-A FORWARD -j A\n-A A -m owner --uid-owner 0 -j ACCEPT\n", KNOWN, {"accept", "drop"}),
]


@pytest.mark.parametrize(("rules", "packet", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_outcomes(rules: str, packet: Packet, expected: set[str]) -> None:
    assert outcomes(parse(f"*filter\n{HEAD}{rules}COMMIT\n"), packet) == expected


def test_no_filter_table_accepts() -> None:
    assert outcomes((), Packet()) == {"accept"}
