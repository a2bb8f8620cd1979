# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read and delete tracked flows. Which of them are stale is decided elsewhere; here exactly the named ones go."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Generator, Iterable
from itertools import islice
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import conntrack_protocol as protocol
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import (
    UDP,
    Answer,
    Flow,
    Wanted,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import NetlinkError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import (
    NETLINK_NETFILTER,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_EXCL,
    NLM_F_REQUEST,
    NLMSG_ERROR,
    attribute_map,
    failure_of,
    message,
    messages,
    open_or_explain,
)

#: Deletes sent at once. The kernel answers each that fails, and the answers must fit the receive buffer.
_DELETES_PER_SEND = 256
_RECEIVE_BUFFER_BYTES = 1 << 20
_DELETE = "delete tracked flows"


class TableSize(NamedTuple):
    """How full the connection table of this network namespace is; `maximum` is 0 if unlimited."""

    entries: int
    maximum: int


class Conntrack:
    """One socket to connection tracking of this network namespace."""

    def __init__(self) -> None:
        self._socket = open_or_explain(NETLINK_NETFILTER)
        self._socket.ensure_receive_buffer(_RECEIVE_BUFFER_BYTES)

    def __enter__(self) -> Conntrack:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def flows(self, family: int, wanted: Wanted | None = None, number: int = UDP) -> Generator[Flow, None, None]:
        """Yield the flows of one protocol, as a stream: the table may hold a million that nobody asked for.

        Use it up, or close it, before the next call. A flow that starts or ends meanwhile may or may not be
        seen; one that is there all the time may be seen twice.

        Args:
            family: 4 or 6.
            wanted: skip everything else before it becomes an object.
            number: protocol number.
        """
        request = protocol.dump_request(family, number)
        with contextlib.closing(self._socket.stream("read tracked flows", protocol.GET, request)) as stream:
            for reply in stream:
                flow = protocol.decode_flow(reply.payload, number, wanted)
                if flow is not None:
                    yield flow

    def answer(
        self, family: int, number: int, source: tuple[bytes, int], destination: tuple[bytes, int]
    ) -> Answer | None:
        """Return who answers the flow that was dialled so, None if it is not tracked. Reads no other flow.

        Args:
            family: 4 or 6.
            number: protocol number.
            source: address and port that the client has itself.
            destination: address and port that it dialled.

        Raises:
            NetlinkError: the kernel does not answer.
        """
        body = protocol.lookup_request(family, number, source, destination)
        try:
            replies = self._socket.request("look up a tracked flow", protocol.GET, body)
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise
            return None
        found = [protocol.decode_answer(reply.payload, number) for reply in replies]
        return next((answer for answer in found if answer is not None), None)

    def delete(self, flows: Iterable[Flow]) -> int:
        """Delete exactly these flows; return how many still existed.

        Raises:
            NetlinkError: anything but a flow that is gone already. Flows before it are deleted.
        """
        pending = iter(flows)
        deleted = 0
        while True:
            some = list(islice(pending, _DELETES_PER_SEND))
            if not some:
                return deleted
            deleted += len(some) - self._delete_some(some)

    def _delete_some(self, flows: list[Flow]) -> int:
        """Send deletes of which only failures, and the last, are answered; return how many were missing."""
        self._socket.drain()
        first = self._socket.reserve_sequences(len(flows))
        last = first + len(flows) - 1
        self._socket.send(
            b"".join(
                message(
                    protocol.DELETE,
                    NLM_F_REQUEST | (NLM_F_ACK if sequence == last else 0),
                    sequence,
                    protocol.delete_request(flow),
                )
                for sequence, flow in enumerate(flows, first)
            ),
            _DELETE,
        )
        missing = 0
        while True:
            for reply in messages(self._socket.wait(_DELETE)):
                if reply.type != NLMSG_ERROR or not first <= reply.sequence <= last:
                    continue
                failure = failure_of(reply)
                if failure.errno == errno.ENOENT:
                    missing += 1
                elif failure.errno:
                    raise NetlinkError(f"delete {flows[reply.sequence - first]}", failure.errno, failure.text)
                if reply.sequence == last:
                    return missing

    def insert(self, flow: Flow, timeout_seconds: int = 120) -> None:
        """Make the kernel track a flow that no packet made (tests, and moving flows between nodes).

        Raises:
            NetlinkError: EEXIST if either direction is tracked already.
        """
        body = protocol.insert_request(flow, timeout_seconds)
        self._socket.request(f"insert {flow}", protocol.NEW, body, NLM_F_CREATE | NLM_F_EXCL)

    def size(self) -> TableSize:
        """Return the number of tracked flows of all protocols and the limit."""
        replies = self._socket.request("read the size of the connection table", protocol.GET_STATS, bytes(4))
        parts = attribute_map(replies[0].payload, 4)
        entries = parts.get(protocol.STATS_ENTRIES, memoryview(b""))
        maximum = parts.get(protocol.STATS_MAX_ENTRIES, memoryview(b""))
        return TableSize(int.from_bytes(entries, "big"), int.from_bytes(maximum, "big"))
