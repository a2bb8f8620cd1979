# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Notice flows as connection tracking takes them on, in this network namespace.

The kernel forgets a TCP flow at once whose first answer is a reset, so that its table does not say any more where a
connection was led that an endpoint refused.
"""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import conntrack_protocol as protocol
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import Answer
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netlink import NETLINK_NETFILTER, messages
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.subscription import Subscription

_NFNLGRP_CONNTRACK_NEW = 1
#: Some tens of thousands of flows. What does not fit is lost, and then not told.
_RECEIVE_BUFFER_BYTES = 8 << 20

#: An address, packed, and a port.
End = tuple[bytes, int]


class NewFlows(Subscription):
    """A subscription to new flows, from when it is opened."""

    def __init__(self) -> None:
        """Subscribe. Raises NetlinkError."""
        super().__init__(NETLINK_NETFILTER)
        self._socket.ensure_receive_buffer(_RECEIVE_BUFFER_BYTES)
        self._socket.join(_NFNLGRP_CONNTRACK_NEW)

    def read(self, number: int) -> dict[tuple[End, End], Answer]:
        """Return the flows of a protocol that began since the last call: who answers, by both ends as dialled.

        Never blocks. The last flow of the same ends counts.

        Raises:
            OSError: the kernel does not answer.
        """
        found: dict[tuple[End, End], Answer] = {}
        for data in self._told():
            for message in messages(data) if data is not None else ():
                if message.type != protocol.NEW:
                    continue
                flow = protocol.decode_flow(message.payload, number)
                answer = protocol.decode_answer(message.payload, number)
                if flow is not None and answer is not None:
                    ends = (flow.source, flow.source_port), (flow.destination, flow.destination_port)
                    found[ends] = answer
        return found
