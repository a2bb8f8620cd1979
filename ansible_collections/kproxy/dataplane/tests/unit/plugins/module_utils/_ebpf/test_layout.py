# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Keys and values, packed and read back."""

from __future__ import annotations

import ipaddress

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import flows, layout


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


@pytest.mark.parametrize(
    ("family", "ip", "protocol", "port"),
    [(4, "10.96.0.10", 6, 80), (6, "fd00::10", 17, 53), (4, "", 6, 30080), (6, "", 17, 30080)],
)
def test_frontend_key(family: int, ip: str, protocol: int, port: int) -> None:
    address = packed(ip) if ip else b""
    key = layout.frontend_key(family, address, protocol, port)
    assert len(key) == layout.SIZES["frontends%d" % family][0]
    assert layout.unpack_frontend_key(key) == (address, protocol, port)


@pytest.mark.parametrize(("family", "only"), [(4, ""), (6, ""), (4, "10.244.1.5"), (6, "fd00:10:244:1::5")])
def test_frontend_value(family: int, only: str) -> None:
    value = layout.FrontendValue(
        7, 1 if only else 3, 1, 10800, (layout.LOCAL_ONLY, 0, layout.MASQUERADE), layout.FRONTEND_AFFINITY,
        layout.endpoint(packed(only), 8080, layout.ENDPOINT_LOCAL) if only else b"",
    )  # fmt: skip
    assert len(value.pack(family)) == layout.SIZES["frontends%d" % family][1]
    assert layout.FrontendValue.unpack(value.pack(family)) == value


def test_settings() -> None:
    value = layout.Settings(1 << 40, layout.HOST_ONLY, 9, packed("192.0.2.1"), packed("2001:db8::1"))
    assert len(value.pack()) == layout.SIZES["settings"][1]
    assert layout.Settings.unpack(value.pack()) == value


@pytest.mark.parametrize(
    ("name", "dialled", "endpoint"),
    [("connected4", "10.96.0.10", "10.244.1.5"), ("connected6", "fd00:10:96::10", "fd00:10:244:1::5")],
)
def test_place(name: str, dialled: str, endpoint: str) -> None:
    value = layout.Place(1 << 40, 1, 2, packed(dialled), 80, packed(endpoint), 8080)
    assert len(value.pack()) == layout.SIZES[name][1]
    assert layout.Place.unpack(value.pack()) == value


@pytest.mark.parametrize("entries", [0, 251, 131071])
def test_table_sizes(entries: int) -> None:
    assert layout.table_entries(layout.table_value_size(entries)) == entries


@pytest.mark.parametrize(
    ("first", "last", "prefixes"),
    [
        ("10.0.0.0", "10.0.0.255", ["10.0.0.0/24"]),
        ("10.0.0.1", "10.0.0.1", ["10.0.0.1/32"]),
        ("10.0.0.1", "10.0.0.6", ["10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/31", "10.0.0.6/32"]),
        ("0.0.0.0", "255.255.255.255", ["0.0.0.0/0"]),
        ("2001:db8::", "2001:db8::1:ffff", ["2001:db8::/111"]),
    ],
)
def test_ranges_become_the_fewest_prefixes(first: str, last: str, prefixes: list[str]) -> None:
    found = layout.prefixes_of([(packed(first), packed(last))])
    assert [f"{ipaddress.ip_address(network)}/{length}" for length, network in found] == prefixes


FLOW_KEY4 = packed("198.51.100.9") + packed("192.0.2.11") + bytes([0x9C, 0x40, 0x75, 0x80, 6, 0, 0, 0])


def flow4(flags: int, seen: int = 5, protocol: int = 6) -> flows.Flow:
    value = seen.to_bytes(8, "little") + packed("198.51.100.9") + packed("10.244.1.5") + bytes([0x9C, 0x40, 0x1F, 0x90])
    value += (3).to_bytes(4, "little") + bytes([flags]) + bytes(7)
    return flows.unpack_flow(FLOW_KEY4[:12] + bytes([protocol]) + FLOW_KEY4[13:], value)


def test_flow_knows_its_endpoint() -> None:
    forward = flow4(flows.FORWARD)
    assert (forward.source_port, forward.destination_port, forward.service) == (40000, 30080, 3)
    assert forward.endpoint == (packed("10.244.1.5"), 8080)
    assert flow4(0).endpoint == (packed("198.51.100.9"), 40000)
