"""Addresses of interfaces, and the sign that they changed."""

from __future__ import annotations

import select
import subprocess
from ipaddress import ip_address

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.addresses import AddressWatch, local_addresses


def run(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def test_addresses_are_listed_with_interface_and_scope(own_network: None) -> None:
    run("link", "add", "kp-veth", "type", "veth", "peer", "name", "kp-peer")
    run("link", "set", "kp-veth", "up")
    run("address", "add", "192.0.2.7/24", "dev", "kp-veth")
    run("address", "add", "192.0.2.8", "peer", "192.0.2.9/32", "dev", "kp-veth")
    run("address", "add", "2001:db8::7/64", "dev", "kp-veth", "nodad")
    found = {
        (str(ip_address(a.address)), a.prefix_length, a.interface)
        for a in local_addresses()
        if a.scope == "global" and a.usable
    }
    assert found == {
        ("192.0.2.7", 24, "kp-veth"),
        ("192.0.2.8", 32, "kp-veth"),
        ("2001:db8::7", 64, "kp-veth"),
    }
    assert {a.family for a in local_addresses(4)} == {4}
    assert {a.family for a in local_addresses(6)} == {6}
    assert [(a.interface, a.scope) for a in local_addresses(4) if a.address == b"\x7f\0\0\1"] == [("lo", "host")]


def test_every_change_is_signalled_once(own_network: None) -> None:
    run("link", "add", "kp-veth", "type", "veth", "peer", "name", "kp-peer")
    with AddressWatch() as watch:
        assert not watch.changed()
        for verb in ("add", "del"):
            for address in ("192.0.2.7/24", "2001:db8::7/64"):
                run("address", verb, address, "dev", "kp-veth")
                assert select.select([watch], [], [], 1)[0], f"{verb} {address} unnoticed for a second"
                assert watch.changed()
                assert not watch.changed()
        run("route", "add", "blackhole", "198.51.100.0/24")
        assert not watch.changed()
