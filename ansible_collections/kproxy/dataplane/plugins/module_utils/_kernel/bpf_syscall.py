# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The bpf(2) system call from plain Python: one function for each command in use.

Attribute layouts are those of union bpf_attr in include/uapi/linux/bpf.h. Every function returns a file descriptor the
caller owns, or data, and raises OSError with the kernel's error number.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from typing import NamedTuple

_NUMBERS = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "loongarch64": 280}
_libc = ctypes.CDLL(None, use_errno=True)

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, MAP_GET_NEXT_KEY, PROG_LOAD, OBJ_PIN, OBJ_GET = 0, 1, 2, 3, 4, 5, 6, 7
PROG_TEST_RUN, OBJ_GET_INFO, MAP_FREEZE, MAP_LOOKUP_BATCH, MAP_UPDATE_BATCH = 10, 15, 22, 24, 26
LINK_CREATE, LINK_UPDATE, LINK_DETACH, PROG_QUERY, PROG_GET_FD_BY_ID = 28, 29, 34, 16, 13

F_REPLACE = 4
LOG_SIZE = 1 << 20
#: As often a load is begun before it counts as failed; libbpf begins 5 times, for the same reason.
LOAD_ATTEMPTS = 20


class VerifierError(OSError):
    """The verifier refused a program; `log` is the tail of what it said."""

    def __init__(self, errno: int, program: str, log: str) -> None:
        super().__init__(errno, "program %s: %s: %s" % (program, os.strerror(errno), log.strip() or "no verifier log"))
        self.program = program
        self.log = log


class MapInfo(NamedTuple):
    """What the kernel says about a map."""

    kind: int
    number: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int
    name: str


class ProgramInfo(NamedTuple):
    """What the kernel says about a program. `verified`: instructions the verifier walked (0 before 5.16)."""

    kind: int
    number: int
    tag: str
    translated: int
    verified: int
    name: str


class LinkInfo(NamedTuple):
    """What the kernel says about a link. `target` is a cgroup id or an interface index, 0 if the target is gone."""

    kind: int
    number: int
    program: int
    target: int
    attach_type: int


def call(command: int, attributes: bytes) -> ctypes.Array[ctypes.c_char]:
    """Run one command; return the attribute buffer as the kernel left it."""
    return _call(command, attributes)[1]


def _call(command: int, attributes: bytes) -> tuple[int, ctypes.Array[ctypes.c_char]]:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(38, "bpf(2) has no known number on %s" % platform.machine())
    size = max(len(attributes), 128)
    buffer = ctypes.create_string_buffer(attributes.ljust(size, b"\0"), size)
    result = _libc.syscall(ctypes.c_long(number), ctypes.c_int(command), buffer, ctypes.c_uint(len(attributes)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result, buffer


def lookup_batch(buffer: ctypes.Array[ctypes.c_char], size: int) -> int:
    """Run MAP_LOOKUP_BATCH on a caller's attribute buffer, which keeps the count even where the call fails."""
    number = _NUMBERS[platform.machine()]
    if _libc.syscall(ctypes.c_long(number), ctypes.c_int(MAP_LOOKUP_BATCH), buffer, ctypes.c_uint(size)) < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    count: int = struct.unpack_from("=I", buffer.raw, 32)[0]
    return count


def _fd(command: int, attributes: bytes) -> int:
    descriptor = _call(command, attributes)[0]
    os.set_inheritable(descriptor, False)
    return descriptor


def map_create(
    name: str, kind: int, key_size: int, value_size: int, max_entries: int, flags: int = 0, inner: int = 0
) -> int:
    """Create a map; `name` is cut to 15 characters. inner: of a map of maps, one like those it will hold.

    Raises OSError, which names the map.
    """
    short = name.encode("ascii")[:15]
    attributes = struct.pack("=IIIIIIi16s", kind, key_size, value_size, max_entries, flags, inner, 0, short)
    try:
        return _fd(MAP_CREATE, attributes + b"\0" * 24)
    except OSError as error:
        raise map_error("make map %s for %d entries" % (name, max_entries), error) from error


def map_error(action: str, error: OSError) -> OSError:
    """Return an error that says what could not be done to which map, and where to look."""
    code = error.errno or errno.EIO
    advice = "; memory is short, or the cgroup has a limit (MemoryMax)" if code == errno.ENOMEM else ""
    return OSError(code, "cannot %s: %s%s" % (action, os.strerror(code), advice))


def map_freeze(descriptor: int) -> None:
    """Forbid user space to write a map from now on, so that the verifier may trust its content."""
    call(MAP_FREEZE, struct.pack("=I", descriptor))


def map_lookup(descriptor: int, key: bytes, value_size: int) -> bytes | None:
    """Return one value, None if the key is absent."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value = ctypes.create_string_buffer(value_size)
    try:
        call(MAP_LOOKUP, struct.pack("=IIQQQ", descriptor, 0, ctypes.addressof(key_buffer), ctypes.addressof(value), 0))
    except FileNotFoundError:
        return None
    return value.raw


def map_update(descriptor: int, key: bytes, value: bytes, flags: int = 0) -> None:
    """Write one element. flags: 0 any, 1 must be new, 2 must exist."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value_buffer = ctypes.create_string_buffer(value, len(value))
    call(
        MAP_UPDATE,
        struct.pack("=IIQQQ", descriptor, 0, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), flags),
    )


def map_delete(descriptor: int, key: bytes) -> bool:
    """Delete one element; False if it was absent."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    try:
        call(MAP_DELETE, struct.pack("=IIQ", descriptor, 0, ctypes.addressof(key_buffer)))
    except FileNotFoundError:
        return False
    return True


def program_load(name: str, kind: int, attach_type: int, instructions: bytes, license_text: bytes) -> int:
    """Load a program. Raises VerifierError with the tail of the log; the log is only made after a first refusal."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    text = ctypes.create_string_buffer(license_text)

    def attributes(level: int, size: int, log: int) -> bytes:
        return struct.pack(
            "=IIQQIIQII16sII",
            kind,
            len(instructions) // 8,
            ctypes.addressof(code),
            ctypes.addressof(text),
            level,
            size,
            log,
            0,
            0,
            name.encode("ascii")[:15],
            0,
            attach_type,
        )

    try:
        return _load(attributes(0, 0, 0))
    except OSError as first:
        log = ctypes.create_string_buffer(LOG_SIZE)
        try:
            return _load(attributes(1, LOG_SIZE, ctypes.addressof(log)))
        except OSError:
            lines = log.value.decode("utf-8", "replace").splitlines()
            raise VerifierError(first.errno or 0, name, "\n".join(lines[-12:])) from first


def _load(attributes: bytes) -> int:
    """Load a program, and begin again where a signal came: the verifier then gives up with EAGAIN.

    Signals in the kernel's sense are also a process that is stopped and goes on, a cgroup that is frozen, a machine
    that is suspended, and a debugger that attaches.
    """
    for _attempt in range(LOAD_ATTEMPTS - 1):
        with contextlib.suppress(BlockingIOError):
            return _fd(PROG_LOAD, attributes)
    return _fd(PROG_LOAD, attributes)


def pin(descriptor: int, path: str) -> None:
    """Pin a map, program or link. The last part of `path`, which errors name, must hold no dot (EPERM otherwise)."""
    name = ctypes.create_string_buffer(path.encode())
    try:
        call(OBJ_PIN, struct.pack("=QII", ctypes.addressof(name), descriptor, 0))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def get_pinned(path: str) -> int:
    """Open a pinned object. Raises OSError with its path."""
    name = ctypes.create_string_buffer(path.encode())
    try:
        return _fd(OBJ_GET, struct.pack("=QII", ctypes.addressof(name), 0, 0))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _info(descriptor: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    call(OBJ_GET_INFO, struct.pack("=IIQ", descriptor, size, ctypes.addressof(buffer)))
    return buffer.raw


def map_info(descriptor: int) -> MapInfo:
    """Describe a map."""
    kind, number, key, value, entries, flags, name = struct.unpack_from("=IIIIII16s", _info(descriptor, 88))
    return MapInfo(kind, number, key, value, entries, flags, name.rstrip(b"\0").decode())


def program_info(descriptor: int) -> ProgramInfo:
    """Describe a program."""
    raw = _info(descriptor, 232)
    kind, number = struct.unpack_from("=II", raw)
    (translated,) = struct.unpack_from("=I", raw, 20)
    (verified,) = struct.unpack_from("=I", raw, 216)
    return ProgramInfo(kind, number, raw[8:16].hex(), translated // 8, verified, raw[64:80].rstrip(b"\0").decode())


def program_maps(descriptor: int) -> frozenset[int]:
    """Return the ids of the maps that a program uses, its constants included."""
    room = 64
    numbers = (ctypes.c_uint32 * room)()
    # struct bpf_prog_info: nr_map_ids and map_ids, which the kernel reads before it writes.
    buffer = ctypes.create_string_buffer(232)
    struct.pack_into("=IQ", buffer, 52, room, ctypes.addressof(numbers))
    call(OBJ_GET_INFO, struct.pack("=IIQ", descriptor, len(buffer), ctypes.addressof(buffer)))
    (count,) = struct.unpack_from("=I", buffer, 52)
    return frozenset(numbers[: min(count, room)])


_LINK_CGROUP, _LINK_XDP, _LINK_TCX = 3, 6, 11


def link_info(descriptor: int) -> LinkInfo:
    """Describe a link to a cgroup, an XDP hook or a tcx hook."""
    raw = _info(descriptor, 64)
    kind, number, program = struct.unpack_from("=III", raw)
    target, attach_type = 0, 0
    if kind == _LINK_CGROUP:
        target, attach_type = struct.unpack_from("=QI", raw, 16)
    elif kind == _LINK_TCX:
        target, attach_type = struct.unpack_from("=II", raw, 16)
    elif kind == _LINK_XDP:
        (target,) = struct.unpack_from("=I", raw, 16)
    return LinkInfo(kind, number, program, target, attach_type)


def link_create(program: int, target: int, attach_type: int, flags: int = 0) -> int:
    """Attach a program. `target` is a cgroup's descriptor or an interface index."""
    return _fd(LINK_CREATE, struct.pack("=IIII", program, target, attach_type, flags) + b"\0" * 32)


def link_update(link: int, program: int, expected: int | None = None) -> None:
    """Swap the program of a link, only if it holds `expected` when given (EPERM otherwise). ENOLINK: target is gone."""
    call(LINK_UPDATE, struct.pack("=IIII", link, program, F_REPLACE if expected is not None else 0, expected or 0))


def link_detach(link: int) -> None:
    """Detach a link now, whoever else holds it."""
    call(LINK_DETACH, struct.pack("=I", link))


def program_by_number(number: int) -> int:
    """Open a program by its id."""
    return _fd(PROG_GET_FD_BY_ID, struct.pack("=III", number, 0, 0))


def attached_programs(target: int, attach_type: int) -> tuple[int, ...]:
    """Ids of the programs on a hook, in the order they run. `target`: cgroup descriptor or interface index."""
    room = 64
    numbers = (ctypes.c_uint32 * room)()
    buffer = call(
        PROG_QUERY, struct.pack("=IIIIQII", target, attach_type, 0, 0, ctypes.addressof(numbers), room, 0) + b"\0" * 32
    )
    (count,) = struct.unpack_from("=I", buffer.raw, 24)
    return tuple(numbers[:count])


class RunResult(NamedTuple):
    """Result of a test run: the program's return value and the packet it left."""

    value: int
    packet: bytes


def run_once(program: int, packet: bytes, context: bytes) -> RunResult:
    """Run a packet program once on `packet` (Ethernet header first), with a struct __sk_buff (may be empty)."""
    value, left, _context = run_in_context(program, packet, context)
    return RunResult(value, left)


def run_in_context(program: int, packet: bytes, context: bytes) -> tuple[int, bytes, bytes]:
    """Run a packet program once; return its value, the packet and the context (of the given size) that it left."""
    data = ctypes.create_string_buffer(packet, len(packet))
    out = ctypes.create_string_buffer(len(packet) + 512)
    size = len(context)
    ctx, ctx_out = ctypes.create_string_buffer(context, max(size, 1)), ctypes.create_string_buffer(max(size, 1))
    buffer = call(
        PROG_TEST_RUN,
        struct.pack(
            "=IIIIQQIIIIQQ",
            program,
            0,
            len(packet),
            len(out),
            ctypes.addressof(data),
            ctypes.addressof(out),
            1,
            0,
            size,
            size,
            ctypes.addressof(ctx) if size else 0,
            ctypes.addressof(ctx_out) if size else 0,
        ),
    )
    (value,) = struct.unpack_from("=I", buffer.raw, 4)
    (length,) = struct.unpack_from("=I", buffer.raw, 12)
    return value, out.raw[:length], ctx_out.raw[:size]
