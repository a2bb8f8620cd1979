# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The shipped objects: what the parser makes of them, and what it says about files that are none."""

from __future__ import annotations

import struct

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import btf, elf, layout, object_file, programs
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.programs import sock, tc

SOCK = programs.unpack(sock.OBJECT)
TC = programs.unpack(tc.OBJECT)

SOCK_HOOKS = {
    "cgroup/connect4", "cgroup/connect6", "cgroup/sendmsg4", "cgroup/sendmsg6", "cgroup/recvmsg4", "cgroup/recvmsg6",
    "cgroup/getpeername4", "cgroup/getpeername6", "cgroup/post_bind4", "cgroup/post_bind6",
    "cgroup/sock_release",
}  # fmt: skip


@pytest.mark.parametrize(("data", "hooks"), [(SOCK, SOCK_HOOKS), (TC, {"tcx/ingress", "tcx/egress"})])
def test_programs_and_licence(data: bytes, hooks: set[str]) -> None:
    parsed = object_file.parse(data)
    assert {program.section for program in parsed.programs} == hooks
    assert parsed.license == b"Dual BSD/GPL\0"
    for program in parsed.programs:
        assert len(program.instructions) % 8 == 0
        assert {reference.name for reference in program.references} <= {held.name for held in parsed.maps} | {".rodata"}


@pytest.mark.parametrize("data", [SOCK, TC], ids=["sock", "tc"])
def test_maps_have_the_layout_that_python_packs(data: bytes) -> None:
    sizes = {held.name: (held.key_size, held.value_size) for held in object_file.parse(data).maps}
    known = {name: layout.SIZES[name] for name in sizes if name in layout.SIZES}
    assert known == {name: sizes[name] for name in known}
    assert {"frontends4", "frontends6", "slots4", "slots6", "settings", "affinity4", "affinity6"} <= set(known)


def test_both_objects_declare_shared_maps_alike() -> None:
    first = {held.name: held for held in object_file.parse(SOCK).maps}
    second = {held.name: held for held in object_file.parse(TC).maps}
    assert {name: first[name] for name in first if name in second} == {
        name: second[name] for name in second if name in first
    }


def test_linking_puts_descriptors_where_the_maps_are() -> None:
    parsed = object_file.parse(SOCK)
    program = next(program for program in parsed.programs if program.section == "cgroup/connect4")
    fds = {held.name: 1000 + number for number, held in enumerate(parsed.maps)}
    fds[".rodata"] = 999
    code = program.linked(fds)
    for reference in program.references:
        source = code[reference.instruction + 1] >> 4
        (descriptor,) = struct.unpack_from("<i", code, reference.instruction + 4)
        assert descriptor == fds[reference.name]
        assert source == (2 if reference.name == ".rodata" else 1)


def test_constants_are_set_by_name() -> None:
    parsed = object_file.parse(SOCK)
    data = parsed.rodata_with({"has_set_retval": 0, "table_size": 251})
    assert len(data) == len(parsed.rodata)
    for name, value in (("has_set_retval", 0), ("table_size", 251)):
        offset, size = parsed.constants[name]
        assert int.from_bytes(data[offset : offset + size], "little") == value
    with pytest.raises(KeyError):
        parsed.rodata_with({"no_such_constant": 1})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no little-endian ELF64"),
        (b"#!/bin/sh\n", "no little-endian ELF64"),
        (SOCK[:18] + b"\x3e\0" + SOCK[20:], "machine 62 instead of 247"),
        (SOCK[:5000], "not a BPF object"),
    ],
    ids=["empty", "script", "other-machine", "cut-short"],
)
def test_other_files_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(elf.ElfError, match=words):
        object_file.parse(data)


@pytest.mark.parametrize("data", [b"", b"\x9f\xeb\x01", b"\0" * 64], ids=["empty", "cut", "zeros"])
def test_malformed_btf_is_refused(data: bytes) -> None:
    with pytest.raises(btf.BtfError):
        btf.parse_maps(data)
