# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Map definitions out of an object's .BTF section.

Layout: Documentation/bpf/btf.rst. A map is a variable of the DATASEC ".maps" whose type is an anonymous structure of
pointers: a number is the length of an array (``int (*max_entries)[16384]``), a type is what the pointer points to.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

INT, POINTER, ARRAY, STRUCT, UNION, ENUM, TYPEDEF, VOLATILE, CONST, RESTRICT = 1, 2, 3, 4, 5, 6, 8, 9, 10, 11
FUNC_PROTO, VAR, DATASEC, DECL_TAG, ENUM64 = 13, 14, 15, 17, 19

# Bytes after the 12-byte type header, fixed and for each of the `vlen` members.
_TRAILER = {
    INT: (4, 0),
    ARRAY: (12, 0),
    STRUCT: (0, 12),
    UNION: (0, 12),
    ENUM: (0, 8),
    FUNC_PROTO: (0, 8),
    VAR: (4, 0),
    DATASEC: (0, 12),
    DECL_TAG: (4, 0),
    ENUM64: (0, 12),
}


class BtfError(ValueError):
    """The type section is cut short or a map definition is not in the expected form."""


class MapDefinition(NamedTuple):
    """A map as the program text declares it. Sizes in bytes."""

    name: str
    kind: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


class _Type(NamedTuple):
    name: str
    kind: int
    vlen: int
    size: int  # or the referenced type
    body: int  # offset of what follows the header


def parse_maps(data: bytes) -> tuple[MapDefinition, ...]:
    """Return the maps that .BTF section `data` declares, by name."""
    try:
        return _Reader(data).maps()
    except (struct.error, IndexError, KeyError) as error:
        raise BtfError("malformed .BTF section: %r" % (error,)) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        magic, _version, _flags, header = struct.unpack_from("<HBBI", data)
        if magic != 0xEB9F:
            raise BtfError(".BTF has magic %#x instead of 0xeb9f" % magic)
        type_offset, type_size, string_offset, string_size = struct.unpack_from("<IIII", data, 8)
        self._data = data
        self._strings = data[header + string_offset : header + string_offset + string_size]
        self._types: list[_Type] = [_Type("", 0, 0, 0, 0)]
        position, end = header + type_offset, header + type_offset + type_size
        while position < end:
            name, info, size = struct.unpack_from("<III", data, position)
            kind, vlen = info >> 24 & 0x1F, info & 0xFFFF
            self._types.append(_Type(self._string(name), kind, vlen, size, position + 12))
            fixed, member = _TRAILER.get(kind, (0, 0))
            position += 12 + fixed + member * vlen

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode("ascii")

    def _resolve(self, number: int) -> _Type:
        found = self._types[number]
        while found.kind in (TYPEDEF, VOLATILE, CONST, RESTRICT):
            found = self._types[found.size]
        return found

    def _array(self, found: _Type) -> tuple[int, int]:
        element, _index, count = struct.unpack_from("<III", self._data, found.body)
        return element, count

    def _size(self, number: int) -> int:
        found = self._resolve(number)
        if found.kind == ARRAY:
            element, count = self._array(found)
            return count * self._size(element)
        return 8 if found.kind == POINTER else found.size

    def maps(self) -> tuple[MapDefinition, ...]:
        found = []
        for section in self._types:
            if section.kind == DATASEC and section.name == ".maps":
                for index in range(section.vlen):
                    number, _offset, _size = struct.unpack_from("<III", self._data, section.body + 12 * index)
                    found.append(self._map(self._types[number]))
        return tuple(sorted(found))

    def _map(self, variable: _Type) -> MapDefinition:
        numbers: dict[str, int] = {"type": 0, "max_entries": 0, "map_flags": 0}
        sizes: dict[str, int] = {"key": 0, "value": 0}
        definition = self._resolve(variable.size)
        for index in range(definition.vlen):
            name_offset, number, _bits = struct.unpack_from("<III", self._data, definition.body + 12 * index)
            name, target = self._string(name_offset), self._resolve(number)
            if target.kind != POINTER:
                raise BtfError("map %s: member %s is no pointer" % (variable.name, name))
            if name in numbers:
                numbers[name] = self._array(self._resolve(target.size))[1]
            elif name in sizes:
                sizes[name] = self._size(target.size)
            else:
                raise BtfError("map %s: unknown member %s" % (variable.name, name))
        return MapDefinition(
            variable.name, numbers["type"], sizes["key"], sizes["value"], numbers["max_entries"], numbers["map_flags"]
        )
