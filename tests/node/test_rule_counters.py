"""Packets that rules have counted are read by protocol, and only those of the chain that was asked for."""

from __future__ import annotations

import socket

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.rule_counters import packets_by_protocol
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import SCTP, TCP, UDP

STRUCTURE = """
table {table} kproxy {{
    chain refuse-loopback {{
        meta l4proto tcp counter
        meta l4proto udp counter
        meta l4proto sctp counter
    }}
    chain filter-output {{
        type filter hook output priority 0; policy accept;
        meta l4proto udp counter
        udp dport 9 jump refuse-loopback
        tcp dport 9 jump refuse-loopback
    }}
}}
"""


@pytest.mark.parametrize(("family", "table", "address"), [(4, "ip", "127.0.0.1"), (6, "ip6", "::1")])
def test_counters_are_told_apart_by_protocol(own_network: None, family: int, table: str, address: str) -> None:
    NftCommand().load(STRUCTURE.format(table=table))
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    for port in (9, 9, 9, 10):
        with socket.socket(kind, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", (address, port))
    with socket.socket(kind) as client:
        assert client.connect_ex((address, 9)) != 0
    with Nfnetlink() as kernel:
        assert packets_by_protocol(kernel, family, "refuse-loopback") == {TCP: 1, UDP: 3, SCTP: 0}
        assert packets_by_protocol(kernel, family, "no-such-chain") == {}


def test_a_table_that_is_not_there_has_counted_nothing(own_network: None) -> None:
    with Nfnetlink() as kernel:
        assert packets_by_protocol(kernel, 4, "refuse-loopback") == {}
