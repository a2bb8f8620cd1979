# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The packet programs on the devices of the current network namespace: tcx links, or clsact filters below Linux 6.6.

On loopback only packets that leave are looked at: what the node sends to itself is translated at the socket, and what
must be silent is silenced.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import socket
import struct
from collections.abc import Collection, Iterable, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_link
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_ROUTE,
    NLM_F_CREATE,
    NetlinkSocket,
    attribute,
    nested,
    text_attribute,
)

ETHERNET = 1
LOOPBACK = 772
_SIOCGIFHWADDR = 0x8927
INGRESS, EGRESS = "ingress", "egress"
_TCX = {INGRESS: 46, EGRESS: 47}
_CLSACT_PARENT = {INGRESS: 0xFFFFFFF2, EGRESS: 0xFFFFFFF3}
_RTM_NEWQDISC, _RTM_NEWTFILTER, _RTM_DELTFILTER, _RTM_GETTFILTER = 36, 44, 45, 46
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


def devices() -> dict[str, tuple[int, int]]:
    """Return (index, hardware type) by name of every device."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for index, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFHWADDR, struct.pack("16s24x", name.encode()))
            except OSError:  # gone since it was listed
                continue
            (hardware,) = struct.unpack_from("=H", answer, 16)
            found[name] = (index, hardware)
    return found


def excluded(names: Iterable[str], patterns: Collection[str]) -> set[str]:
    """Return those of the names that one of the patterns matches."""
    return {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}


def directions(hardware: int) -> tuple[str, ...]:
    """Return the directions in which the packets of a device of this hardware type are looked at."""
    return (EGRESS,) if hardware == LOOPBACK else (INGRESS, EGRESS)


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
    return os.path.join(pins, "tcx_%s_%d" % (direction, index))


def tcx_indexes(pins: str) -> set[int]:
    """Return the indexes of the devices that have a pinned link, or had one when they were there."""
    names = os.listdir(pins) if os.path.isdir(pins) else []
    return {int(name.rpartition("_")[2]) for name in names if name.startswith("tcx_")}


def tcx_holds(pins: str, index: int, wanted: Collection[str]) -> bool:
    """Whether a device has the links of these directions.

    The device that had this index before may have left its pins; and one that moved keeps its index where it went.
    """
    for direction in wanted:
        held = bpf_link.look(tcx_pin(pins, direction, index))
        if held is None or held.target != index:
            return False
        try:
            if held.program not in bpf.attached_programs(index, _TCX[direction]):
                return False
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
            return False
    return True


def detach_tcx(pins: str, index: int) -> None:
    """Detach and unpin the links of one index, whatever they are attached to."""
    for direction in (INGRESS, EGRESS):
        bpf_link.remove(tcx_pin(pins, direction, index))


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


def clsact_indexes(candidates: Mapping[int, Collection[str]]) -> set[int]:
    """Return the indexes of those devices that still have our filters, for each of the directions given."""
    found = set()
    with NetlinkSocket(NETLINK_ROUTE) as connection:
        for index, wanted in candidates.items():
            try:
                for direction in wanted:
                    connection.request(
                        "look for a filter",
                        _RTM_GETTFILTER,
                        _filter(index, direction) + text_attribute(_TCA_KIND, "bpf"),
                    )
            except NetlinkError as error:
                if error.errno not in _ABSENT:
                    raise
            else:
                found.add(index)
    return found


def detach_clsact(index: int) -> None:
    """Remove our filters from one device; the qdisc stays, others may use it."""
    with NetlinkSocket(NETLINK_ROUTE) as connection:
        for direction in (INGRESS, EGRESS):
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
