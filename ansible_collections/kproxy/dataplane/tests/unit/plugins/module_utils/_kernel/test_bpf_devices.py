# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which devices get packet programs, and which of them."""

from __future__ import annotations

import struct

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_devices
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import attribute, nested, text_attribute
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import (
    ETHERNET,
    LOOPBACK,
    Device,
    device_of,
    excluded,
)

NAMES = ("eth0", "eth1", "lo", "stor0", "stor10", "wg0")


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ((), set()),
        (("stor0",), {"stor0"}),
        (("stor?",), {"stor0"}),
        (("stor*", "wg*"), {"stor0", "stor10", "wg0"}),
        (("eth[1-9]",), {"eth1"}),
        (("STOR*", "none*"), set()),
        (("*",), set(NAMES)),
    ],
)
def test_excluded(patterns: tuple[str, ...], names: set[str]) -> None:
    assert excluded(NAMES, patterns) == names


@pytest.mark.parametrize(
    ("device", "directions"),
    [
        (Device(2, ETHERNET), ("ingress", "egress")),
        # A tunnel, without a link header.
        (Device(3, 65534), ("ingress", "egress")),
        (Device(1, LOOPBACK), ("egress",)),
        (Device(4, ETHERNET, port=True), ("egress",)),
    ],
)
def test_directions(device: Device, directions: tuple[str, ...]) -> None:
    assert bpf_devices.directions(device) == directions


IFNAME, MASTER, LINKINFO, SLAVE_KIND = 3, 10, 18, 4


@pytest.mark.parametrize(
    ("kind", "port"),
    [
        (None, False),
        ("", True),
        ("bridge", True),
        ("bond", True),
        ("openvswitch", True),
        # Its devices' packets are looked at where they come in, and nowhere else.
        ("vrf", False),
    ],
)
def test_a_port_is_told_by_what_it_belongs_to(kind: str | None, port: bool) -> None:
    parts = text_attribute(IFNAME, "eth0")
    if kind is not None:
        parts += attribute(MASTER, struct.pack("=I", 9))
    if kind:
        parts += nested(LINKINFO, text_attribute(SLAVE_KIND, kind))
    payload = struct.pack("=BxHiII", 0, ETHERNET, 4, 0, 0) + parts
    assert device_of(memoryview(payload)) == ("eth0", Device(4, ETHERNET, port))
