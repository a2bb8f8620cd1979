# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a kernel that refuses a map is told of: which map, and what to look at."""

from __future__ import annotations

import errno
import os

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_map import BpfMap, MapFull

SHORT = "Cannot allocate memory; memory is short, or the cgroup has a limit (MemoryMax)"
ROOM = 4096
MANY = {bytes([number] * 4): bytes(4) for number in range(20)}


def refusing(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(bpf_syscall, "_call", refuse)


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> BpfMap:
    monkeypatch.setattr(bpf_syscall, "map_info", lambda _fd: bpf_syscall.MapInfo(1, 7, 4, 4, ROOM, 0, "kp_slots4"))
    return BpfMap("slots4", 0)


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOMEM, SHORT), (errno.EPERM, "Operation not permitted")], ids=["memory", "right"]
)
def test_a_refusal_names_its_map(slots: BpfMap, monkeypatch: pytest.MonkeyPatch, code: int, words: str) -> None:
    refusing(code, monkeypatch)
    with pytest.raises(OSError, match="slots4") as refused:
        bpf_syscall.map_create("kp_slots4", 1, 4, 4, ROOM)
    assert (refused.value.errno, refused.value.strerror) == (
        code,
        f"cannot make map kp_slots4 for {ROOM} entries: {words}",
    )
    for elements in (dict(list(MANY.items())[:1]), MANY):
        with pytest.raises(OSError, match="slots4") as refused:
            slots.update(elements)
        assert (refused.value.errno, refused.value.strerror) == (code, f"cannot write to map slots4: {words}")


@pytest.mark.parametrize("code", [errno.E2BIG, errno.ENOSPC])
def test_a_full_map_says_its_size(slots: BpfMap, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    refusing(code, monkeypatch)
    for elements in (dict(list(MANY.items())[:1]), MANY):
        with pytest.raises(MapFull, match=f"map slots4 is full at {ROOM} entries"):
            slots.update(elements)


def test_a_refusal_names_its_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(errno.EPERM, monkeypatch)
    for pinning in (lambda: bpf_syscall.pin(0, "/bpf/links/x"), lambda: bpf_syscall.get_pinned("/bpf/links/x")):
        with pytest.raises(PermissionError, match="Operation not permitted: '/bpf/links/x'"):
            pinning()
