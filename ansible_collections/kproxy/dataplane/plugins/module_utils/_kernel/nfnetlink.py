# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Commit elements to our tables over netlink and read our tables back.

Every question names our own family and table. Where the kernel cannot filter a listing itself (chains), foreign answers
are recognised by their table name and dropped without being parsed.
"""

from __future__ import annotations

import errno
import operator
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import element_encoding as encoding
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import nft_protocol as nft
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.batch_split import split
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.element_decoding import (
    TimedElement,
    decode_elements,
    decode_timed_elements,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import (
    DumpInterrupted,
    ElementError,
    NetlinkError,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_NETFILTER,
    NLMSG_ERROR,
    Failure,
    attribute_map,
    failure_of,
    messages,
    open_or_explain,
    text_attribute,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import (
    IntervalEnd,
    Key,
    SetName,
    Transaction,
    Value,
)

#: Room for the answers to a batch in which very many elements fail.
_RECEIVE_BUFFER_BYTES = 1 << 20
#: Deletes with a message each, whose answers must fit the receive buffer if all of them fail.
#: Two maps of IPv6 pins stay well below the send buffer that every socket has.
_TIMED_PER_BATCH = 500
_DELETES_PER_BATCH = 1000
_DUMP_ATTEMPTS = 20
#: The first pause for the kernel's background resize of a hash table; each further one is longer by as much.
_RESIZE_SECONDS = 0.005

_Read = TypeVar("_Read")


class CommitResult(NamedTuple):
    """What a commit did.

    Attributes:
        generation: of the ruleset right after the commit.
        foreign: True if somebody else changed the ruleset between our question before and the one after, so that
            `generation` may be theirs.
        batches: 1, or more where the kernel allows no datagram of that size; then only each batch is atomic.
        bytes: sent in all.
    """

    generation: int
    foreign: bool
    batches: int
    bytes: int


class Nfnetlink:
    """One nfnetlink socket that speaks for the tables of one name (families ip and ip6)."""

    def __init__(self, table: str = "kproxy") -> None:
        self.table = table
        self._socket = open_or_explain(NETLINK_NETFILTER)
        self._socket.ensure_receive_buffer(_RECEIVE_BUFFER_BYTES)
        #: Whether the kernel has a delete that tolerates missing elements; None until it was first needed.
        self.destroy_works: bool | None = None

    def __enter__(self) -> Nfnetlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    @property
    def port(self) -> int:
        """Our netlink port number: the kernel stamps it on the notifications that our commits cause."""
        return self._socket.port

    # ------------------------------------------------------------------ writing

    def commit(self, transaction: Transaction, expected_generation: int | None = None) -> CommitResult:
        """Commit the transaction's elements (its structure is nft_command's part).

        All of it is in force afterwards, or nothing; see `CommitResult.batches` for the one exception.

        Args:
            transaction: what to do.
            expected_generation: fail with ERESTART if the ruleset is of another generation.

        Raises:
            ElementError: the kernel refused an element, or would (then nothing was sent); says which.
            NetlinkError: the kernel refused the batch as a whole.
        """
        before = self.generation()
        pieces = encoding.encode_pieces(transaction)
        if not pieces:
            return CommitResult(before, False, 0, 0)
        datagram, last = self._build(pieces, expected_generation)
        if self._socket.ensure_send_buffer(len(datagram)):
            self._exchange(pieces, datagram, last)
            batches, sent = 1, len(datagram)
        else:
            batches, sent = self._commit_in_parts(transaction, expected_generation)
        after = self.generation()
        return CommitResult(after, after != _next_generation(before, batches), batches, sent)

    def _commit_in_parts(self, transaction: Transaction, expected_generation: int | None) -> tuple[int, int]:
        batches = sent = 0
        for part in split(transaction, self._socket.send_limit()):
            pieces = encoding.encode_pieces(part)
            datagram, last = self._build(pieces, expected_generation if not batches else None)
            try:
                self._exchange(pieces, datagram, last)
            except ElementError as error:
                raise _renumbered(error, transaction) from error
            batches += 1
            sent += len(datagram)
        return batches, sent

    def _build(self, pieces: Sequence[encoding.Piece], expected_generation: int | None) -> tuple[bytes, int]:
        sequence = self._socket.reserve_sequences(len(pieces) + 2)
        return encoding.batch(self.table, pieces, sequence, expected_generation)

    def _exchange(self, pieces: Sequence[encoding.Piece], datagram: bytes, last: int) -> None:
        """Send one batch and wait for its verdict."""
        first_piece = last - len(pieces) + 1
        failures = self._send_batch(datagram, first_piece - 1, last)
        if not failures:
            return
        failure = failures[0]
        if failure.sequence < first_piece:
            raise NetlinkError("commit to nf_tables", failure.errno, failure.text)
        piece = pieces[failure.sequence - first_piece]
        offset = encoding.element_at(self.table, piece, failure.offset)
        if offset is None and failure.errno == errno.ENOENT and not self.set_exists(piece.set_name):
            raise ElementError(
                piece.set_name, piece.operation, None, None, failure.errno, f"table {self.table} has no such set or map"
            )
        if offset is None and len(piece.elements) > 1:
            # An older kernel does not say which element of the message it was: ask again, one element a message.
            singles = encoding.single(pieces)
            again, last_again = self._build(singles, None)
            if self._socket.ensure_send_buffer(len(again)):
                self._exchange(singles, again, last_again)
                return
        if offset is None and len(piece.elements) == 1:
            offset = 0
        raise _element_error(piece, offset, failure)

    def _send_batch(self, datagram: bytes, first: int, last: int) -> list[Failure]:
        """Return the failures of a batch, in order; empty if it is in force."""
        self._socket.drain()
        self._socket.send(datagram, "send a batch to nf_tables")
        failures: list[Failure] = []
        acknowledged = False
        while True:
            # The kernel works a batch off inside send(): all answers there will ever be are queued by now.
            try:
                data = self._socket.receive()
            except OSError as error:
                raise NetlinkError("read the answer to a batch", error.errno or errno.EIO) from error
            if data is None:
                break
            for reply in messages(data):
                if reply.type != NLMSG_ERROR or not first <= reply.sequence <= last:
                    continue
                failure = failure_of(reply)
                if failure.errno:
                    failures.append(failure)
                elif reply.sequence == last:
                    acknowledged = True
        if not failures and not acknowledged:
            raise NetlinkError("commit to nf_tables", errno.EPROTO, "no acknowledgement")
        return failures

    def add_timed_elements(self, elements: Mapping[SetName, Sequence[TimedElement]]) -> None:
        """Add elements to dynamic maps: the first of every map together, then the next, some hundreds at a time.

        Raises:
            ElementError: EBUSY if a map holds something else by that key, as packets may have put there meanwhile; what
                was added before stays.
            NetlinkError: the kernel refused a batch as a whole.
        """
        count = max(map(len, elements.values()), default=0)
        for first in range(0, count, _TIMED_PER_BATCH):
            pieces = encoding.encode_timed_pieces(
                {set_name: timed[first : first + _TIMED_PER_BATCH] for set_name, timed in elements.items()}
            )
            datagram, last = self._build(pieces, None)
            self._exchange(pieces, datagram, last)

    def delete_elements_ignoring_missing(self, set_name: SetName, keys: Sequence[Key]) -> int:
        """Delete elements that may be gone already (pins that expire meanwhile); return how many there still were.

        With kernels that know the "destroy" operation the number is that of the keys given: those do not tell.

        Raises:
            NetlinkError: anything but a missing element.
        """
        remaining = list(dict.fromkeys(keys))
        if not remaining:
            return 0
        if self.destroy_works is not False:
            try:
                self._destroy(set_name, remaining)
                self.destroy_works = True
                return len(remaining)
            except NetlinkError as error:
                if self.destroy_works or error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self.destroy_works = False
        return sum(
            self._delete_existing(set_name, remaining[first : first + _DELETES_PER_BATCH])
            for first in range(0, len(remaining), _DELETES_PER_BATCH)
        )

    def _destroy(self, set_name: SetName, keys: list[Key]) -> None:
        for part in split(Transaction(deletes={set_name: keys}), self._socket.send_limit()):
            pieces = encoding.encode_pieces(part)
            sequence = self._socket.reserve_sequences(len(pieces) + 2)
            datagram, last = encoding.batch(self.table, pieces, sequence, None, nft.DESTROYSETELEM)
            failures = self._send_batch(datagram, sequence, last)
            if failures:
                raise NetlinkError(f"destroy elements of {set_name}", failures[0].errno, failures[0].text)

    def _delete_existing(self, set_name: SetName, remaining: list[Key]) -> int:
        """Delete as one batch, leaving out what the kernel reports as missing, until the batch holds.

        One round tells every element that is missing, so two rounds do unless more expire between them.
        """
        while remaining:
            pieces = encoding.single(encoding.encode_pieces(Transaction(deletes={set_name: remaining})))
            datagram, last = self._build(pieces, None)
            first_piece = last - len(pieces) + 1
            failures = self._send_batch(datagram, first_piece - 1, last)
            if not failures:
                return len(remaining)
            missing: set[int] = set()
            for failure in failures:
                if failure.errno != errno.ENOENT or failure.sequence < first_piece:
                    raise NetlinkError(f"delete elements of {set_name}", failure.errno, failure.text)
                missing.add(failure.sequence - first_piece)
            remaining = [key for index, key in enumerate(remaining) if index not in missing]
        return 0

    # ------------------------------------------------------------------ reading

    def generation(self) -> int:
        """Return the number of the ruleset's current generation in this network namespace."""
        replies = self._socket.request(
            "read the ruleset's generation", nft.message_type(nft.GETGEN), nft.NFGENMSG.pack(0, 0, 0)
        )
        return int(struct.unpack(">I", attribute_map(replies[0].payload, 4)[nft.GEN_ID])[0])

    def table_exists(self, family: int) -> bool:
        """Tell whether our table is there in family 4 or 6."""
        return self._exists("look for our table", nft.GETTABLE, family, b"")

    def table_flags(self, family: int) -> int:
        """Return the flags of our table, such as dormant; 0 if it does not exist."""
        payload = nft.nfgenmsg(family) + text_attribute(nft.TABLE_NAME, self.table)
        try:
            replies = self._socket.request("look at our table", nft.message_type(nft.GETTABLE), payload)
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return 0
            raise
        (flags,) = struct.unpack(">I", attribute_map(replies[0].payload, 4).get(nft.TABLE_FLAGS, bytes(4)))
        return int(flags)

    def set_exists(self, set_name: SetName) -> bool:
        """Tell whether our table has this set or map."""
        name = text_attribute(nft.SET_NAME, set_name.name)
        return self._exists(f"look for {set_name}", nft.GETSET, set_name.family, name)

    def chain_exists(self, family: int, name: str) -> bool:
        """Tell whether our table has this chain in family 4 or 6."""
        return self._exists(f"look for chain {name}", nft.GETCHAIN, family, text_attribute(nft.CHAIN_NAME, name))

    def _exists(self, action: str, operation: int, family: int, which: bytes) -> bool:
        payload = nft.nfgenmsg(family) + text_attribute(nft.TABLE_NAME, self.table) + which
        try:
            self._socket.request(action, nft.message_type(operation), payload)
        except NetlinkError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True

    def dump_elements(self, set_name: SetName) -> list[tuple[Key, Value, str | None]]:
        """Return (key, value, comment) of every element of one of our sets; a range of one key comes as that key.

        Of a dynamic map to which packets add meanwhile, an element may be missing: ask again if it matters.

        Raises:
            NetlinkError: ENOENT if there is no such set.
        """
        return self._dump_steadily(set_name, decode_elements, operator.itemgetter(0))

    def dump_timed_elements(self, set_name: SetName) -> list[TimedElement]:
        """Return the elements of one of our dynamic maps with their timeouts (pins)."""
        return self._dump_steadily(set_name, decode_timed_elements, operator.attrgetter("key"))

    def _dump_steadily(
        self, set_name: SetName, decode: Callable[[Iterable[memoryview]], list[_Read]], key_of: Callable[[_Read], Key]
    ) -> list[_Read]:
        """Dump a set until no key comes twice.

        A dump walks the kernel's hash table anew for each buffer it fills and skips what it has told already. The
        kernel resizes the table in the background after many additions; that changes the order under the walk, without
        any mark on the answer: some elements come twice and as many not at all. Packets that add to a dynamic map do
        the same all the time, so there the pause for which to wait may never come.
        """
        payload = encoding.element_list_prefix(self.table, set_name)
        for attempt in range(_DUMP_ATTEMPTS):
            replies = self._socket.dump(f"read {set_name}", nft.message_type(nft.GETSETELEM), payload)
            found = decode([reply.payload for reply in replies])
            distinct = {key_of(element): element for element in found}
            if len(distinct) == len(found):
                return found
            if self._is_dynamic(set_name):
                return list(distinct.values())
            time.sleep(_RESIZE_SECONDS * (attempt + 1))
        raise DumpInterrupted(f"read {set_name}: the kernel resized it during {_DUMP_ATTEMPTS} attempts")

    def _is_dynamic(self, set_name: SetName) -> bool:
        """Tell whether packets add to a set."""
        payload = encoding.element_list_prefix(self.table, set_name)  # the same two attributes name a set here
        replies = self._socket.request(f"look at {set_name}", nft.message_type(nft.GETSET), payload)
        (flags,) = struct.unpack(">I", attribute_map(replies[0].payload, 4).get(nft.SET_FLAGS, bytes(4)))
        return bool(flags & nft.SET_FLAG_EVAL)

    def dump_ours(self, action: str, operation: int, family: int, filters: bytes) -> list[memoryview]:
        """Return the payloads of a listing that belong to our table.

        Chains, rules and sets all carry their table's name as first attribute (number 1): what has another name is
        dropped unread, also where an older kernel did not filter.
        """
        ours = text_attribute(1, self.table)
        payload = nft.nfgenmsg(family) + ours + filters
        try:
            replies = self._socket.dump(action, nft.message_type(operation), payload)
        except NetlinkError as error:
            if error.errno == errno.ENOENT:  # no such table: newer kernels say so, older ones list nothing
                return []
            raise
        end = 4 + len(ours)
        header = nft.nfgenmsg(family)[:1]
        return [r.payload for r in replies if r.payload[4:end] == ours and r.payload[:1] == header]


def _next_generation(generation: int, count: int) -> int:
    """Return the generation `count` commits later; 0 is never used."""
    for _step in range(count):
        generation = (generation + 1) & 0xFFFFFFFF or 1
    return generation


def _element_error(piece: encoding.Piece, offset: int | None, failure: Failure) -> ElementError:
    if offset is None:
        return ElementError(piece.set_name, piece.operation, None, None, failure.errno, failure.text)
    key = decode_key(piece.elements[offset])
    index = piece.first + offset
    return ElementError(piece.set_name, piece.operation, index, key, failure.errno, failure.text)


def _renumbered(error: ElementError, transaction: Transaction) -> ElementError:
    """Return the error of a part of the transaction with the element's position in the whole."""
    if error.key is None:
        return error
    if error.operation == encoding.ADD:
        keys = [element[0] for element in transaction.adds[error.set_name]]
    else:
        keys = transaction.deletes[error.set_name]
    index = keys.index(error.key)
    return ElementError(error.set_name, error.operation, index, error.key, error.errno, error.detail)


def decode_key(element: bytes) -> Key:
    """Return the key of one encoded element."""
    parts = attribute_map(memoryview(element)[4:])
    first = bytes(attribute_map(parts[nft.ELEM_KEY])[nft.DATA_VALUE])
    if nft.ELEM_KEY_END in parts:
        return (first, bytes(attribute_map(parts[nft.ELEM_KEY_END])[nft.DATA_VALUE]))
    return IntervalEnd(first) if nft.ELEM_FLAGS in parts else first
