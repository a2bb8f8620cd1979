# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which devices get packet programs, and which of them."""

from __future__ import annotations

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_devices

NAMES = ("eth0", "eth1", "lo", "stor0", "stor10", "wg0")


@pytest.mark.parametrize(
    ("patterns", "excluded"),
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
def test_excluded(patterns: tuple[str, ...], excluded: set[str]) -> None:
    assert bpf_devices.excluded(NAMES, patterns) == excluded


@pytest.mark.parametrize(
    ("hardware", "directions"),
    [
        (bpf_devices.ETHERNET, ("ingress", "egress")),
        # A tunnel, without a link header.
        (65534, ("ingress", "egress")),
        # What the node sends to itself comes in translated or not at all.
        (bpf_devices.LOOPBACK, ("egress",)),
    ],
)
def test_directions(hardware: int, directions: tuple[str, ...]) -> None:
    assert bpf_devices.directions(hardware) == directions
