# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Devices whose IPv6 default route the kernel learned from router advertisements.

A kernel that forwards accepts no further ones unless accept_ra is 2, so such a route ends some minutes after forwarding
was switched on (Documentation/networking/ip-sysctl.rst). A route that systemd-networkd or NetworkManager keeps is not
meant: they listen themselves, with accept_ra 0.
"""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import sysctl

_ADDRCONF = 0x00040000  # RTF_ADDRCONF of include/uapi/linux/ipv6_route.h


def learned_default_routes(routes: str) -> list[str]:
    """Return the devices, in order, of a text of /proc/net/ipv6_route."""
    devices: dict[str, None] = {}
    for line in routes.splitlines():
        fields = line.split()
        if len(fields) == 10 and fields[:2] == ["0" * 32, "00"] and int(fields[8], 16) & _ADDRCONF:
            devices[fields[9]] = None
    return list(devices)


def accept_ra(device: str) -> str:
    """Return the name of a device's setting; a dot in the device's name is a slash there, as for sysctl(8)."""
    return f"net.ipv6.conf.{device.replace('.', '/')}.accept_ra"


def endangered_devices(routes_path: str = "/proc/net/ipv6_route") -> list[str]:
    """Return the devices of this node that would lose their default route once it forwards."""
    try:
        with open(routes_path, encoding="ascii") as file:
            routes = file.read()
    except OSError:  # no IPv6
        return []
    return [device for device in learned_default_routes(routes) if sysctl.read(accept_ra(device)) == "1"]
