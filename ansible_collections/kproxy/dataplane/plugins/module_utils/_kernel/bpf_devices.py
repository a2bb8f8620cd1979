# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The packet programs on the devices of the current network namespace: tcx links, or clsact filters below Linux 6.6.

On loopback only packets that leave are looked at: what the node sends to itself is translated at the socket, and what
must be silent is silenced. On the ports of bridges and bonds, too, since the bridge or bond takes in what they do.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_link
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_ROUTE,
    NLM_F_CREATE,
    NetlinkSocket,
    attribute,
    attribute_map,
    nested,
    text,
    text_attribute,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.network_devices import LOOPBACK, Device

INGRESS, EGRESS = "ingress", "egress"
BOTH = (INGRESS, EGRESS)
_TCX_PREFIX = "tcx_"
_TCX = {INGRESS: 46, EGRESS: 47}
_CLSACT_PARENT = {INGRESS: 0xFFFFFFF2, EGRESS: 0xFFFFFFF3}
_RTM_NEWQDISC, _RTM_GETQDISC, _RTM_NEWTFILTER, _RTM_DELTFILTER, _RTM_GETTFILTER = 36, 38, 44, 45, 46
#: What the kernel says about a filter, qdisc or device that is not there.
_ABSENT = (errno.ENOENT, errno.EINVAL, errno.ENODEV)
_TC_H_CLSACT, _CLSACT_HANDLE = 0xFFFFFFF1, 0xFFFF0000
_TCMSG = struct.Struct("=BBHiIII")
_TCA_KIND, _TCA_OPTIONS = 1, 2
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS = 6, 7, 8
_DIRECT_ACTION = 1
#: Ours among the filters of a device: one priority, one handle.
PRIORITY, HANDLE = 0x4B50, 1
_ALL_PROTOCOLS = 0x0300
_REPLACE = 0x100

#: A direction, and the index of a device.
Hook = tuple[str, int]


def directions(device: Device) -> tuple[str, ...]:
    """Return the directions in which the packets of a device are looked at.

    What the node sends to itself comes in translated or not at all. What comes in by a port comes in once more, by the
    device it belongs to; looked at twice, it would be taken for a connection to the endpoint itself the second time.
    """
    return (EGRESS,) if device.hardware == LOOPBACK or device.port else (INGRESS, EGRESS)


def attach_tcx(pins: str, index: int, programs: Mapping[str, int]) -> None:
    """Put the programs (by direction) on one device, by pinned links. A device gone meanwhile is no error."""
    for direction, program in programs.items():
        try:
            bpf_link.adopt_or_create(
                tcx_pin(pins, direction, index),
                program,
                lambda ready, at=_TCX[direction]: bpf.link_create(ready, index, at),  # type: ignore[misc]
            )
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.EINVAL) or _exists(index):
                raise


def tcx_pin(pins: str, direction: str, index: int) -> str:
    """Return the path of one link's pin."""
    return os.path.join(pins, "%s%s_%d" % (_TCX_PREFIX, direction, index))


def tcx_pinned(pins: str) -> set[Hook]:
    """Return the hooks that have a pinned link, or had one when their device was there."""
    names = os.listdir(pins) if os.path.isdir(pins) else []
    parts = [name[len(_TCX_PREFIX) :].split("_") for name in names if name.startswith(_TCX_PREFIX)]
    return {(direction, int(index)) for direction, index in parts}


def tcx_programs(hook: Hook) -> tuple[int, ...]:
    """Return the ids of the programs on a hook; none if the device has gone."""
    direction, index = hook
    try:
        return bpf.attached_programs(index, _TCX[direction])
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return ()


def ingress_qdiscs() -> set[int]:
    """Return the indexes of the devices that have a qdisc "ingress", which takes the place of clsact.

    It has no egress side, and puts filters that are meant for one among those of ingress. CNI plugins that limit the
    bandwidth of pods make it.
    """
    with NetlinkSocket(NETLINK_ROUTE) as connection:
        replies = connection.dump("list qdiscs", _RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0, 0, 0))
    found = set()
    for reply in replies:
        kind = attribute_map(reply.payload, _TCMSG.size).get(_TCA_KIND)
        if kind is not None and text(kind) == "ingress":
            found.add(_TCMSG.unpack_from(reply.payload)[3])
    return found


def attach_clsact(index: int, programs: Mapping[str, int]) -> None:
    """Put the programs (by direction) on one device as direct-action filters of clsact, replacing ours."""
    with NetlinkSocket(NETLINK_ROUTE) as connection:
        try:
            connection.request(
                "add a clsact qdisc",
                _RTM_NEWQDISC,
                _TCMSG.pack(0, 0, 0, index, _CLSACT_HANDLE, _TC_H_CLSACT, 0) + text_attribute(_TCA_KIND, "clsact"),
                NLM_F_CREATE | 0x200,
            )
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise
        for direction, program in programs.items():
            options = nested(
                _TCA_OPTIONS,
                attribute(_TCA_BPF_FD, struct.pack("=I", program)),
                text_attribute(_TCA_BPF_NAME, "kproxy_" + direction),
                attribute(_TCA_BPF_FLAGS, struct.pack("=I", _DIRECT_ACTION)),
            )
            connection.request(
                "put a filter on device %d" % index,
                _RTM_NEWTFILTER,
                _filter(index, direction) + text_attribute(_TCA_KIND, "bpf") + options,
                NLM_F_CREATE | _REPLACE,
            )


def clsact_filtered(candidates: Iterable[Hook]) -> set[Hook]:
    """Return those of the hooks that have our filter."""
    found = set()
    with NetlinkSocket(NETLINK_ROUTE) as connection:
        for direction, index in candidates:
            try:
                connection.request(
                    "look for a filter", _RTM_GETTFILTER, _filter(index, direction) + text_attribute(_TCA_KIND, "bpf")
                )
            except NetlinkError as error:
                if error.errno not in _ABSENT:
                    raise
            else:
                found.add((direction, index))
    return found


def detach_clsact(hooks: Iterable[Hook]) -> None:
    """Remove our filters from hooks; the qdiscs stay, others may use them."""
    with NetlinkSocket(NETLINK_ROUTE) as connection:
        for direction, index in hooks:
            try:
                connection.request(
                    "remove a filter", _RTM_DELTFILTER, _filter(index, direction) + text_attribute(_TCA_KIND, "bpf")
                )
            except NetlinkError as error:
                if error.errno not in _ABSENT:
                    raise


def _filter(index: int, direction: str) -> bytes:
    return _TCMSG.pack(0, 0, 0, index, HANDLE, _CLSACT_PARENT[direction], PRIORITY << 16 | _ALL_PROTOCOLS)


def _exists(index: int) -> bool:
    try:
        socket.if_indextoname(index)
    except OSError:
        return False
    return True
