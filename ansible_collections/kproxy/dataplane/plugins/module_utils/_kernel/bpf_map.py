# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""One open map: single and batched reads and writes.

Batches are the hot path: packing is the caller's (one bytes object of keys, one of values), the kernel takes about a
million elements a second. A batch that fails part-way has written its first `count` elements.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf

CHUNK = 10000
#: Bytes of keys and values in one batch, at most.
CHUNK_BYTES = 1 << 22


class MapFull(Exception):
    """A map has no room; says which and how large it is."""

    def __init__(self, name: str, max_entries: int) -> None:
        super().__init__("map %s is full at %d entries" % (name, max_entries))


class BpfMap:
    """An open map. Closing it does not remove a pinned map."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.fd = descriptor
        self.info = bpf.map_info(descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def get(self, key: bytes) -> bytes | None:
        """Return one value or None."""
        return bpf.map_lookup(self.fd, key, self.info.value_size)

    def put(self, key: bytes, value: bytes) -> None:
        """Write one element."""
        try:
            bpf.map_update(self.fd, key, value)
        except OSError as error:
            raise self._explain(error) from error

    def update(self, elements: Mapping[bytes, bytes]) -> None:
        """Write many elements; single calls below a handful, batches above."""
        if len(elements) < 8:
            for key, value in elements.items():
                self.put(key, value)
            return
        keys = list(elements)
        chunk = min(CHUNK, self._fitting())
        for start in range(0, len(keys), chunk):
            part = keys[start : start + chunk]
            self._batch(bpf.MAP_UPDATE_BATCH, b"".join(part), b"".join([elements[key] for key in part]), len(part))

    def _fitting(self) -> int:
        """Return how many elements go into one batch by their size."""
        return max(1, CHUNK_BYTES // (self.info.key_size + self.info.value_size))

    def delete(self, keys: Iterable[bytes]) -> None:
        """Delete elements; absent ones are no error."""
        for key in keys:
            bpf.map_delete(self.fd, key)

    def _batch(self, command: int, keys: bytes, values: bytes, count: int) -> None:
        key_buffer = ctypes.create_string_buffer(keys, len(keys))
        value_buffer = ctypes.create_string_buffer(values, len(values))
        try:
            bpf.call(
                command,
                struct.pack(
                    "=QQQQIIQQ",
                    0,
                    0,
                    ctypes.addressof(key_buffer),
                    ctypes.addressof(value_buffer),
                    count,
                    self.fd,
                    0,
                    0,
                ),
            )
        except OSError as error:
            raise self._explain(error) from error

    def _explain(self, error: OSError) -> Exception:
        if error.errno in (errno.E2BIG, errno.ENOSPC):
            return MapFull(self.name, self.info.max_entries)
        return bpf.map_error("write to map %s" % self.name, error)

    def dump(self) -> dict[bytes, bytes]:
        """Return all elements of a hash or LRU hash (batched where the kernel can, else one by one)."""
        try:
            return self._dump_batched()
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, 524):
                raise
            return self._dump_single()

    def _dump_batched(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        key_size, value_size = self.info.key_size, self.info.value_size
        room = min(max(self.info.max_entries, 64), 16384, max(self._fitting(), 8))
        cursor = ctypes.create_string_buffer(max(key_size, 8))
        first, last = True, False
        while not last:
            keys = ctypes.create_string_buffer(room * key_size)
            values = ctypes.create_string_buffer(room * value_size)
            size = len(cursor)
            following = ctypes.create_string_buffer(size)
            packed = struct.pack(
                "=QQQQIIQQ",
                0 if first else ctypes.addressof(cursor),
                ctypes.addressof(following),
                ctypes.addressof(keys),
                ctypes.addressof(values),
                room,
                self.fd,
                0,
                0,
            )
            attributes = ctypes.create_string_buffer(packed, 128)
            try:
                count = bpf.lookup_batch(attributes, len(packed))
            except FileNotFoundError:
                last = True
                (count,) = struct.unpack_from("=I", attributes.raw, 32)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                room *= 2  # one bucket holds more than there is room for
                continue
            raw_keys, raw_values = keys.raw, values.raw
            for index in range(count):
                found[raw_keys[index * key_size : (index + 1) * key_size]] = raw_values[
                    index * value_size : (index + 1) * value_size
                ]
            cursor, first = following, False
        return found

    def _dump_single(self) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for key in self.keys():
            value = self.get(key)
            if value is not None:
                found[key] = value
        return found

    def keys(self) -> Iterable[bytes]:
        """Walk the keys; a key deleted meanwhile may restart the walk, so callers must tolerate repeats."""
        buffer = ctypes.create_string_buffer(self.info.key_size)
        following = ctypes.create_string_buffer(self.info.key_size)
        pointer = 0
        while True:
            try:
                bpf.call(bpf.MAP_GET_NEXT_KEY, struct.pack("=IIQQ", self.fd, 0, pointer, ctypes.addressof(following)))
            except FileNotFoundError:
                return
            yield following.raw
            buffer.raw = following.raw
            pointer = ctypes.addressof(buffer)
