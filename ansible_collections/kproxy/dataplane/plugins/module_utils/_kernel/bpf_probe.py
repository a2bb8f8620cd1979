# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What this kernel can do for the eBPF backend, found by trying and not by version: vendors backport."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import struct
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import NoCgroup2, mount_point
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.file_system import file_system_magic

_BPFFS_MAGIC = 0xCAFE4A11
_RETURN_ONE = struct.pack("<BBhi", 0xB7, 0, 0, 1) + struct.pack("<BBhi", 0x95, 0, 0, 0)
_SET_RETVAL = 187
# *(u32 *)(r10 - 4) = 0; r2 = 0; r3 = r10 - 4; r4 = 0; r5 = 0; call bpf_check_mtu
_CHECK_MTU = b"".join(
    struct.pack("<BBhi", *instruction)
    for instruction in (
        (0x62, 10, -4, 0), (0xB7, 2, 0, 0), (0xBF, 0xA3, 0, 0), (0x07, 3, 0, -4), (0xB7, 4, 0, 0), (0xB7, 5, 0, 0),
        (0x85, 0, 0, 163),
    )
)  # fmt: skip
_SOCK_ADDR, _CONNECT4, _GETPEERNAME4 = 18, 10, 29
_SCHED_CLS, _TCX_INGRESS = 3, 46
_LO = 1


class Capabilities(NamedTuple):
    """What works. `missing` has a sentence for every gap: what is absent and what follows."""

    socket_hooks: bool
    set_retval: bool
    tcx: bool
    check_mtu: bool
    missing: list[str]


def probe() -> Capabilities:
    """Try every gate once; loads a handful of two-instruction programs and attaches none."""
    _lift_memory_limit()
    if not _permitted():
        refusal = "the right to load programs: bpf(2) is not permitted here (CAP_BPF)"
        return Capabilities(False, False, False, False, [refusal])
    missing: list[str] = []
    sockets = _loads(_SOCK_ADDR, _CONNECT4, _RETURN_ONE) and _loads(_SOCK_ADDR, _GETPEERNAME4, _RETURN_ONE)
    if not sockets:
        missing.append("cgroup socket address hooks (Linux 5.8): sockets are not translated")
    try:
        mount_point()
    except NoCgroup2 as error:
        sockets = False
        missing.append(str(error))
    call = struct.pack("<BBhi", 0xB7, 1, 0, -1) + struct.pack("<BBhi", 0x85, 0, 0, _SET_RETVAL)
    set_retval = _loads(_SOCK_ADDR, _CONNECT4, call + _RETURN_ONE)
    if not set_retval:
        missing.append("bpf_set_retval (Linux 5.18): a refused connection fails with EPERM, not ECONNREFUSED")
    tcx = _has_tcx()
    if not tcx:
        missing.append("tcx (Linux 6.6): clsact filters are used, which anybody may remove")
    check_mtu = _loads(_SCHED_CLS, 0, _CHECK_MTU + _RETURN_ONE)
    if not check_mtu:
        missing.append("bpf_check_mtu (Linux 5.12): no direct return, clients from outside are masqueraded")
    return Capabilities(sockets, set_retval, tcx, check_mtu, missing)


def _lift_memory_limit() -> None:
    """Let maps be as large as they must be.

    Below Linux 5.11 the kernel counts maps and programs as memory that their owner has locked, of which it allows
    64 KiB by default, and says EPERM beyond (getrlimit(2), RLIMIT_MEMLOCK). Later it charges them to the memory cgroup.
    """
    for limit in (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]):
        # To go beyond the hard limit takes CAP_SYS_RESOURCE.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
            return


def _loads(kind: int, attach_type: int, instructions: bytes) -> bool:
    try:
        os.close(bpf.program_load("kp_probe", kind, attach_type, instructions, b"GPL"))
    except OSError:
        return False
    return True


def _permitted() -> bool:
    """Whether bpf(2) is allowed at all: a lacking capability or a filter of system calls is not a lacking hook."""
    try:
        os.close(bpf.program_load("kp_probe", _SCHED_CLS, 0, _RETURN_ONE, b"GPL"))
    except OSError as error:
        return error.errno != errno.EPERM
    return True


def _has_tcx() -> bool:
    try:
        bpf.attached_programs(_LO, _TCX_INGRESS)
    except OSError as error:
        return error.errno not in (errno.EINVAL, errno.EOPNOTSUPP)
    return True


def is_bpffs(path: str) -> bool:
    """Whether `path` lies on a BPF file system."""
    try:
        return file_system_magic(path) == _BPFFS_MAGIC
    except OSError:
        return False
