# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""An object file as the loader needs it: programs with the places to patch, maps, constants."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import btf, elf

RODATA = ".rodata"

# Section name -> (program type, expected attach type), include/uapi/linux/bpf.h.
SECTIONS: dict[str, tuple[int, int]] = {
    "cgroup/connect4": (18, 10),
    "cgroup/connect6": (18, 11),
    "cgroup/sendmsg4": (18, 14),
    "cgroup/sendmsg6": (18, 15),
    "cgroup/recvmsg4": (18, 19),
    "cgroup/recvmsg6": (18, 20),
    "cgroup/getpeername4": (18, 29),
    "cgroup/getpeername6": (18, 30),
    "cgroup/post_bind4": (9, 12),
    "cgroup/post_bind6": (9, 13),
    "cgroup/sock_release": (9, 34),
    "tcx/ingress": (3, 46),
    "tcx/egress": (3, 47),
    "xdp": (6, 37),
}

_LD_IMM64 = 0x18
_PSEUDO_MAP_FD = 1
_PSEUDO_MAP_VALUE = 2


class MapReference(NamedTuple):
    """The two-slot instruction at `instruction` takes the address of map `name` (or, in .rodata, of byte `offset`)."""

    instruction: int
    name: str
    offset: int


class Program(NamedTuple):
    """One program, instructions not yet patched."""

    name: str
    section: str
    kind: int
    attach_type: int
    instructions: bytes
    references: tuple[MapReference, ...]

    def linked(self, fds: Mapping[str, int]) -> bytes:
        """Return the instructions with every map replaced by its file descriptor."""
        code = bytearray(self.instructions)
        for reference in self.references:
            value = reference.name == RODATA
            registers = code[reference.instruction + 1] & 0x0F
            code[reference.instruction + 1] = registers | (_PSEUDO_MAP_VALUE if value else _PSEUDO_MAP_FD) << 4
            struct.pack_into("<i", code, reference.instruction + 4, fds[reference.name])
            struct.pack_into("<i", code, reference.instruction + 12, reference.offset if value else 0)
        return bytes(code)


class ObjectFile(NamedTuple):
    """A parsed object: what to create and what to load."""

    programs: tuple[Program, ...]
    maps: tuple[btf.MapDefinition, ...]
    rodata: bytes
    constants: Mapping[str, tuple[int, int]]  # name -> (offset in rodata, size)
    license: bytes

    def rodata_with(self, values: Mapping[str, int]) -> bytes:
        """Return .rodata with the named constants set. Raises KeyError for a name the object does not have."""
        data = bytearray(self.rodata)
        for name, value in values.items():
            offset, size = self.constants[name]
            data[offset : offset + size] = value.to_bytes(size, "little")
        return bytes(data)


def parse(data: bytes) -> ObjectFile:
    """Parse an object built by devtools/bpf_build.py. Raises ElfError or BtfError."""
    parsed = elf.parse(data)
    names = [section.name for section in parsed.sections]
    relocations = parsed.relocations()
    programs: list[Program] = []
    for symbol in parsed.symbols:
        if not symbol.function or names[symbol.section] not in SECTIONS:
            continue
        section = names[symbol.section]
        kind, attach_type = SECTIONS[section]
        code = parsed.sections[symbol.section].data
        if symbol.value or symbol.size != len(code):
            raise elf.ElfError("section %s holds more than one function" % section)
        references = tuple(_reference(parsed, names, code, entry) for entry in relocations.get(symbol.section, []))
        programs.append(Program(symbol.name, section, kind, attach_type, code, references))
    rodata = parsed.section(RODATA).data if RODATA in names else b""
    constants = {
        symbol.name: (symbol.value, symbol.size)
        for symbol in parsed.symbols
        if symbol.size and names[symbol.section if symbol.section < len(names) else 0] == RODATA
    }
    return ObjectFile(
        tuple(programs), btf.parse_maps(parsed.section(".BTF").data), rodata, constants, parsed.section("license").data
    )


def _reference(parsed: elf.Elf, names: list[str], code: bytes, entry: elf.Relocation) -> MapReference:
    symbol = parsed.symbols[entry.symbol]
    if code[entry.offset] != _LD_IMM64:
        raise elf.ElfError("relocation at %d patches no 64-bit load" % entry.offset)
    target = names[symbol.section]
    if target == ".maps":
        return MapReference(entry.offset, symbol.name, 0)
    if target == RODATA:
        (addend,) = struct.unpack_from("<i", code, entry.offset + 4)
        return MapReference(entry.offset, RODATA, symbol.value + addend)
    raise elf.ElfError("relocation against %s in section %s" % (symbol.name, target))
