# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which devices get the XDP program, and in which mode."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import Driver, XdpOptions

HARDWARE = Driver("virtio_net", True)
VETH = Driver("veth", False)
BOND_PORT = Driver("igb", False)


@pytest.mark.parametrize(
    ("patterns", "name", "driver", "takes"),
    [
        ((), "ens3", HARDWARE, True),
        ((), "veth12", VETH, False),
        ((), "ens4", BOND_PORT, False),
        (("ens*",), "ens4", BOND_PORT, True),
        (("ens*", "host0"), "host0", VETH, True),
        (("ens?",), "ens12", HARDWARE, False),
        (("ENS*",), "ens3", HARDWARE, False),
    ],
)
def test_devices(patterns: tuple[str, ...], name: str, driver: Driver, takes: bool) -> None:
    assert XdpOptions("auto", patterns).takes(name, driver) is takes


@pytest.mark.parametrize(
    ("mode", "driver", "modes"),
    [
        ("disabled", "virtio_net", ()),
        ("generic", "virtio_net", ("generic",)),
        ("native", "veth", ("native",)),
        ("auto", "virtio_net", ("native", "generic")),
        # Native XDP on a veth loses what it sends, unless the peer runs a program, too.
        ("auto", "veth", ("generic",)),
        ("auto", "", ("native", "generic")),
    ],
)
def test_modes(mode: str, driver: str, modes: tuple[str, ...]) -> None:
    assert XdpOptions(mode).modes(driver) == modes
