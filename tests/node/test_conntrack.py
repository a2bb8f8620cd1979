"""Tracked flows in a real kernel: exactly the named ones go, and packets then find the new endpoint."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import Flow, Wanted
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand


@pytest.fixture
def table(own_network: None) -> Iterator[Conntrack]:
    with Conntrack() as opened:
        yield opened


def ip(text: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


DNS = Flow(4, 17, ip("10.0.0.1"), ip("10.96.0.10"), 40000, 53, ip("10.180.0.5"), 5353)
DNS6 = Flow(6, 17, ip("fd00::1"), ip("fd00::10"), 40000, 53, ip("fd00::5"), 5353)
FLOWS = [
    DNS,
    DNS6,
    DNS._replace(source_port=40001),
    DNS._replace(source_port=40003, destination_port=54),
    DNS._replace(source_port=40004, destination=ip("10.96.0.11")),
    DNS._replace(zone=7),
    DNS._replace(source_port=40002, reply_source=ip("10.96.0.10"), reply_source_port=53),  # untranslated
]


def plain(flows: list[Flow]) -> list[Flow]:
    return sorted(flow._replace(identifier=None) for flow in flows)


def everything(table: Conntrack) -> list[Flow]:
    return [flow for family in (4, 6) for flow in table.flows(family)]


@pytest.mark.parametrize("gone", FLOWS, ids=repr)
@pytest.mark.parametrize("with_identifier", [True, False])
def test_exactly_the_named_flow_goes(table: Conntrack, gone: Flow, with_identifier: bool) -> None:
    for flow in FLOWS:
        table.insert(flow)
    assert plain(everything(table)) == sorted(FLOWS)
    held = next(flow for flow in everything(table) if flow._replace(identifier=None) == gone)
    assert table.delete([held if with_identifier else gone]) == 1
    assert plain(everything(table)) == sorted(flow for flow in FLOWS if flow != gone)
    assert table.delete([held, gone]) == 0


def test_a_later_flow_of_the_same_addresses_stays(table: Conntrack) -> None:
    table.insert(DNS)
    (first,) = table.flows(4)
    table.delete([first])
    table.insert(DNS)
    (second,) = table.flows(4)
    if second.identifier != first.identifier:  # the identifier is a keyed hash of an address that may be used again
        assert table.delete([first]) == 0
    assert table.delete([second]) == 1


def test_wanted_flows_are_picked_out_of_many(table: Conntrack) -> None:
    many = [DNS._replace(source=ip(f"10.1.{n >> 8}.{n & 255}"), source_port=1024 + n) for n in range(3000)]
    for flow in many:
        table.insert(flow)
    node_port = DNS._replace(source_port=40005, destination=ip("192.0.2.1"), destination_port=30053, replied=True)
    for flow in FLOWS + [node_port]:
        table.insert(flow)
    wanted = Wanted({(ip("10.96.0.11"), 53), (ip("10.96.0.10"), 54)}, frozenset((30053,)))
    found = plain(list(table.flows(4, wanted)))
    assert found == sorted([FLOWS[3], FLOWS[4], node_port])
    assert table.size().entries == len(many) + len(FLOWS) + 1
    assert table.size().maximum > 0
    everybody = list(table.flows(4))
    assert table.delete(everybody + everybody[:700]) == len(everybody), "those that are gone do not count"
    assert plain(everything(table)) == [DNS6]


def test_a_listing_may_be_left_half_way(table: Conntrack) -> None:
    for n in range(2000):
        table.insert(DNS._replace(source_port=1024 + n))
    listing = table.flows(4)
    next(listing)
    listing.close()
    assert len(list(table.flows(4))) == 2000


def test_other_protocols_are_not_listed(table: Conntrack) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        NftCommand().load("table ip kp-test { chain c { type filter hook input priority 0; ct state new accept; }; }")
        with socket.create_connection(server.getsockname()):
            table.insert(DNS)
            assert plain(list(table.flows(4))) == [DNS]
            assert [flow.destination_port for flow in table.flows(4, number=6)] == [server.getsockname()[1]]


def test_a_second_insert_of_the_same_flow_is_refused(table: Conntrack) -> None:
    table.insert(DNS)
    with pytest.raises(NetlinkError, match="EEXIST"):
        table.insert(DNS)


def server(address: str) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind((address, 5353))
    opened.settimeout(60)
    return opened


def test_a_client_that_keeps_sending_reaches_the_new_endpoint_once_its_flow_is_deleted(table: Conntrack) -> None:
    for address in ("10.0.0.1", "10.180.0.5", "10.180.0.6"):
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "route", "add", "10.96.0.0/16", "dev", "lo", "src", "10.0.0.1"], check=True)
    rule = "ip daddr 10.96.0.10 udp dport 53 dnat to %s"
    to = "table ip kp-test { chain c { type nat hook output priority -100; " + rule + "; }; }"
    NftCommand().load(to % "10.180.0.5:5353")
    with server("10.180.0.5") as old, server("10.180.0.6") as new:
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.connect(("10.96.0.10", 53))
        client.send(b"one")
        assert old.recv(16) == b"one"
        NftCommand().load("delete table ip kp-test\n" + to % "10.180.0.6:5353")
        client.send(b"two")
        assert old.recv(16) == b"two", "a tracked flow keeps its endpoint whatever the rules say"
        stale = list(table.flows(4, Wanted({(ip("10.96.0.10"), 53)})))
        assert [(f.reply_source, f.reply_source_port) for f in stale] == [(ip("10.180.0.5"), 5353)]
        assert table.delete(stale) == 1
        client.send(b"three")
        assert new.recv(16) == b"three"
        client.close()
