# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Notice that somebody else changed the ruleset, and whether our table was part of it.

A host firewall that reloads with `flush ruleset` takes our table along and nothing in the API server changes
(rancher/rke2#10469); the kernel's notifications are the only sign.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_NETFILTER,
    Message,
    attribute_map,
    messages,
    text,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.subscription import Subscription

#: Enough for the notifications of a firewall reload of tens of thousands of rules.
_RECEIVE_BUFFER_BYTES = 8 << 20
#: A change is described by at most this many objects.
_MAX_OBJECTS = 8

_OBJECTS: dict[int, tuple[str, int]] = {
    nft.NEWTABLE: ("new table", 0),
    nft.DELTABLE: ("deleted table", 0),
    nft.NEWCHAIN: ("new chain", nft.CHAIN_NAME),
    nft.DELCHAIN: ("deleted chain", nft.CHAIN_NAME),
    nft.NEWRULE: ("new rule in", nft.RULE_CHAIN),
    nft.DELRULE: ("deleted rule in", nft.RULE_CHAIN),
    nft.NEWSET: ("new set", nft.SET_NAME),
    nft.DELSET: ("deleted set", nft.SET_NAME),
    nft.NEWSETELEM: ("new element in", nft.ELEM_LIST_SET),
    nft.DELSETELEM: ("deleted element in", nft.ELEM_LIST_SET),
}

_BPF_LOAD_WORD, _BPF_JUMP_EQUAL, _BPF_RETURN = 0x20, 0x15, 0x06
_HEADER_PORT_OFFSET = 12


class ForeignChange(NamedTuple):
    """One or several commits of others that happened since the last question.

    Attributes:
        generation: of the ruleset after the last of them; None if not known.
        touches_us: our table was among what changed.
        complete: False if notifications were lost: what changed is unknown, audit.
        objects: what happened to our table, in a few words each ("deleted table ip kproxy"); bounded.
        process: name and process id of the last one who committed, "" and 0 if not known.
    """

    generation: int | None
    touches_us: bool
    complete: bool
    objects: tuple[str, ...]
    process: str
    pid: int


class RulesetWatch(Subscription):
    """A subscription to ruleset changes. `fileno()` is readable when `read()` has something to look at."""

    def __init__(self, table: str = "kproxy", own_ports: Iterable[int] = ()) -> None:
        """Subscribe.

        Args:
            table: our table's name in families ip and ip6.
            own_ports: `Nfnetlink.port` of the sockets that commit for us. The kernel still makes notifications for
                them, but they are filtered out before they reach our receive buffer.
        """
        self.table = table
        self._table_bytes = table.encode() + b"\0"
        super().__init__(NETLINK_NETFILTER)
        self._socket.ensure_receive_buffer(_RECEIVE_BUFFER_BYTES)
        self._own_generations: set[int] = set()
        ports = tuple(own_ports)
        if ports:
            self._socket.attach_filter(drop_ports_program(ports))
        self._socket.join(nft.NFNLGRP_NFTABLES)

    def expect_generation(self, generation: int) -> None:
        """Declare a generation as our own (a commit by the nft command, whose port number we do not know)."""
        self._own_generations.add(generation)

    def read(self) -> ForeignChange | None:
        """Return what others did since the last call, all commits taken together; None if nothing. Never blocks."""
        collected = _Collector(self._table_bytes, self.table, self._own_generations)
        for data in self._told():
            if data is None:
                collected.lost = True
                self._own_generations.clear()
                continue
            for message in messages(data):
                collected.take(message)
        return collected.result()


class _Collector:
    """Sort notifications into commits: the objects of a commit come first, its NEWGEN closes it."""

    def __init__(self, table_bytes: bytes, table: str, own_generations: set[int]) -> None:
        self._table_bytes = table_bytes
        self._table = table
        self._own = own_generations
        self._pending: list[str] = []
        self._objects: list[str] = []
        self._generation: int | None = None
        self._process = ""
        self._pid = 0
        self._touches = self._seen = self._pending_touches = False
        self.lost = False

    def take(self, message: Message) -> None:
        if message.type >> 8 != nft.SUBSYSTEM:
            return
        operation = message.type & 0xFF
        if operation == nft.NEWGEN:
            self._close(attribute_map(message.payload, 4))
        elif self._is_ours(message.payload):
            self._pending_touches = True
            if operation == nft.DELTABLE:  # says it all; what was in the table has been named one by one before
                self._pending = [self._describe(operation, message.payload)]
            elif len(self._pending) < _MAX_OBJECTS:
                words = self._describe(operation, message.payload)
                if words not in self._pending:
                    self._pending.append(words)

    def _is_ours(self, payload: memoryview) -> bool:
        """Look at the family and the table name (first attribute of every object) and at nothing else of others."""
        if len(payload) < 8 or payload[0] not in nft.FAMILY_OF_NFPROTO:
            return False
        (length,) = struct.unpack_from("=H", payload, 4)
        return bytes(payload[8 : 4 + length]) == self._table_bytes

    def _describe(self, operation: int, payload: memoryview) -> str:
        words, which = _OBJECTS.get(operation, ("change of", 0))
        family = nft.FAMILY_WORD[nft.FAMILY_OF_NFPROTO[payload[0]]]
        name = attribute_map(payload, 4).get(which) if which else None
        where = f"{words} {family} {self._table}"
        return f"{where} {text(name)}" if name is not None else where

    def _close(self, parts: dict[int, memoryview]) -> None:
        generation = int(struct.unpack(">I", parts[nft.GEN_ID])[0])
        pending, touches = self._pending, self._pending_touches
        self._pending, self._pending_touches = [], False
        if generation in self._own:
            self._own.discard(generation)
            return
        self._seen = True
        self._generation = generation
        self._touches = self._touches or touches
        self._objects += [words for words in pending if words not in self._objects]
        if nft.GEN_PROC_NAME in parts:
            self._process = text(parts[nft.GEN_PROC_NAME])
        if nft.GEN_PROC_PID in parts:
            self._pid = int(struct.unpack(">I", parts[nft.GEN_PROC_PID])[0])

    def result(self) -> ForeignChange | None:
        # Objects without their NEWGEN: it was lost, or the socket filter let only a part through.
        touches = self._touches or self._pending_touches
        if not self._seen and not self.lost and not self._pending_touches:
            return None
        objects = tuple((self._objects + self._pending)[:_MAX_OBJECTS])
        return ForeignChange(self._generation, touches, not self.lost, objects, self._process, self._pid)


def drop_ports_program(ports: tuple[int, ...]) -> bytes:
    """Return a classic BPF program that drops datagrams whose first message has one of these port numbers.

    The kernel stamps the port of the socket that committed on every notification; a datagram never mixes commits.
    """
    # BPF_ABS loads are big-endian, netlink headers are in host order.
    program = [struct.pack("=HBBI", _BPF_LOAD_WORD, 0, 0, _HEADER_PORT_OFFSET)]
    for index, port in enumerate(ports):
        (as_loaded,) = struct.unpack(">I", struct.pack("=I", port))
        to_drop = len(ports) - index  # over the remaining comparisons and the accepting return
        program.append(struct.pack("=HBBI", _BPF_JUMP_EQUAL, to_drop, 0, as_loaded))
    program.append(struct.pack("=HBBI", _BPF_RETURN, 0, 0, 0xFFFFFFFF))
    program.append(struct.pack("=HBBI", _BPF_RETURN, 0, 0, 0))
    return b"".join(program)
