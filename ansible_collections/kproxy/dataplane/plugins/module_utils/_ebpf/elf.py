# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The parts of an ELF64 relocatable file that clang writes for the bpf target: sections, symbols, relocations."""

from __future__ import annotations

import struct
from typing import NamedTuple

EM_BPF = 247
SHT_SYMTAB = 2
SHT_REL = 9


class ElfError(ValueError):
    """The bytes are not a BPF object this loader understands."""


class Section(NamedTuple):
    """One section; `info` of a relocation section is the index of the section it patches."""

    name: str
    kind: int
    info: int
    data: bytes


class Symbol(NamedTuple):
    """One symbol: a map (offset in .maps), a constant (offset in .rodata) or a function (offset in its section)."""

    name: str
    section: int
    value: int
    size: int
    function: bool


class Relocation(NamedTuple):
    """The instruction at byte `offset` of its section refers to symbol number `symbol`."""

    offset: int
    symbol: int


class Elf(NamedTuple):
    """A parsed object file."""

    sections: list[Section]
    symbols: list[Symbol]

    def section(self, name: str) -> Section:
        """Return the only section called `name`."""
        for section in self.sections:
            if section.name == name:
                return section
        raise ElfError("section %s is missing" % name)

    def relocations(self) -> dict[int, list[Relocation]]:
        """Relocations by the index of the section that they patch."""
        found: dict[int, list[Relocation]] = {}
        for section in self.sections:
            if section.kind == SHT_REL:
                entries = struct.iter_unpack("<QQ", section.data)
                found.setdefault(section.info, []).extend(Relocation(at, info >> 32) for at, info in entries)
        return found


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode("ascii")


def parse(data: bytes) -> Elf:
    """Parse a little-endian ELF64 BPF object. Raises ElfError if it is anything else or cut short."""
    try:
        return _parse(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ElfError("not a BPF object file: %s" % error) from error


def _parse(data: bytes) -> Elf:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no little-endian ELF64 header")
    (machine,) = struct.unpack_from("<H", data, 18)
    if machine != EM_BPF:
        raise ValueError("machine %d instead of %d" % (machine, EM_BPF))
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_index = struct.unpack_from("<HHH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + index * size) for index in range(count)]
    names = headers[names_index]
    name_table = data[names[4] : names[4] + names[5]]
    sections = []
    for header in headers:
        body = data[header[4] : header[4] + header[5]] if header[1] else b""
        if len(body) != (header[5] if header[1] else 0):
            raise ValueError("cut short")
        sections.append(Section(_string(name_table, header[0]), header[1], header[7], body))
    symbols: list[Symbol] = []
    for header, section in zip(headers, sections):
        if section.kind == SHT_SYMTAB:
            strings = sections[header[6]].data
            for name, info, _other, index, value, length in struct.iter_unpack("<IBBHQQ", section.data):
                symbols.append(Symbol(_string(strings, name), index, value, length, info & 0xF == 2))
    return Elf(sections, symbols)
