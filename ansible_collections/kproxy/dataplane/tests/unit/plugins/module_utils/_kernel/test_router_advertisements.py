# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which default routes depend on router advertisements."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.router_advertisements import (
    accept_ra,
    endangered_devices,
    learned_default_routes,
)

ANY, GATEWAY, NET = "0" * 32, "fe80" + "0" * 27 + "1", "20010db8" + "0" * 24


def route(destination: str, length: str, gateway: str, flags: int, device: str) -> str:
    return f"{destination} {length} {ANY} 00 {gateway} 00000400 00000001 00000000 {flags:08x} {device:>8}\n"


def test_only_default_routes_that_the_kernel_learned_count() -> None:
    text = (
        route(ANY, "00", GATEWAY, 0x00450003, "eth0")  # by router advertisement
        + route(ANY, "00", GATEWAY, 0x00450003, "eth0")
        + route(ANY, "00", GATEWAY, 0x00000003, "eth1")  # by hand
        + route(NET, "40", ANY, 0x00440001, "eth2")  # an announced prefix
        + route(ANY, "00", ANY, 0x00200200, "lo")
    )
    assert learned_default_routes(text) == ["eth0"]
    assert learned_default_routes("") == []


def test_a_kernel_without_ipv6_has_none(tmp_path: Path) -> None:
    assert endangered_devices(str(tmp_path / "none")) == []


def test_a_dot_in_a_devices_name_is_written_as_sysctl_takes_it() -> None:
    assert accept_ra("eth0.100") == "net.ipv6.conf.eth0/100.accept_ra"
