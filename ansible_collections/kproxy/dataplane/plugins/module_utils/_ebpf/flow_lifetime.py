# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""How long the entries of a connection stay in flows4/6: all of them, or none.

Each entry sees the packets of one direction at one hook. One by itself knows neither whether the other direction still
speaks nor whether it was reset; and once one is gone, the others translate packets to where nobody understands them.
Without removal a busy client uses up the source ports towards an endpoint within minutes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flows import (
    CLOSING,
    DIRECT,
    EGRESS,
    FORWARD,
    INGRESS,
    RESET,
    TCP,
    UNANSWERED,
)

#: Seconds without a packet in either direction after which a connection goes. Closed by both sides, or reset:
CLOSING_SECONDS = 10
#: Closed by one side, and the other may have much to say; kube-proxy's conntrack.tcpCloseWaitTimeout.
HALF_CLOSED_SECONDS = 3600
#: The same where nobody has acknowledged it, as with a client that is gone; nf_conntrack_tcp_timeout_fin_wait.
#: And where we see one direction alone, because endpoints answer directly: the other may have closed as well.
FIN_WAIT_SECONDS = 120
#: Never answered; nf_conntrack_tcp_timeout_syn_sent.
UNANSWERED_SECONDS = 120
#: Established; kube-proxy's conntrack.tcpEstablishedTimeout.
TCP_SECONDS = 86400
UDP_SECONDS = 180

_SECOND = 1_000_000_000
_SEEN = struct.Struct("=q")
_HOOKS = {INGRESS: bytes([INGRESS, 0, 0]), EGRESS: bytes([EGRESS, 0, 0])}

Entries = Mapping[bytes, bytes]


def ended(held: Entries, now: int) -> list[list[bytes]]:
    """Return the keys of the entries of each connection that has ended or idled out.

    held: all of flows4 or flows6. now: CLOCK_MONOTONIC in ns.
    """
    found: list[list[bytes]] = []
    gone: set[bytes] = set()
    for key, value in held.items():
        (seen,) = _SEEN.unpack_from(value)
        if now - seen <= CLOSING_SECONDS * _SECOND or key in gone:
            continue
        flags, tcp = _flags(key, value), key[-4] == TCP
        if not flags & FORWARD and key[-3] == INGRESS and not _leads_here(held, key, value):
            found.append([key])
        elif now - seen > _alone(tcp, flags) * _SECOND:
            connection = _connection(held, key, value)
            entries = [(_flags(*entry), _SEEN.unpack_from(entry[1])[0]) for entry in connection.items()]
            if now - max(last for _flag, last in entries) > _together(tcp, entries) * _SECOND:
                found.append(list(connection))
                gone.update(connection)
    return found


def _alone(tcp: bool, flags: int) -> int:
    """Return the seconds before which a connection with such an entry cannot have ended, unless another entry tells."""
    if not tcp:
        return UDP_SECONDS
    return CLOSING_SECONDS if flags & CLOSING else UNANSWERED_SECONDS if flags & UNANSWERED else TCP_SECONDS


def _together(tcp: bool, entries: Collection[tuple[int, int]]) -> int:
    """Return the seconds that a connection may be idle. entries: flags, and the time of the last packet, of each."""
    if not tcp:
        return UDP_SECONDS
    flags = [one for one, _seen in entries]
    if any(one & RESET for one in flags):
        return CLOSING_SECONDS
    closed = {one & FORWARD for one in flags if one & CLOSING}
    if len(closed) == 2:
        return CLOSING_SECONDS
    if closed:
        spoke = {
            side: max((seen for one, seen in entries if one & FORWARD == side), default=0) for side in (0, FORWARD)
        }
        (closer,) = closed
        # Who gets no answer to a FIN sends it again, for longer than this.
        answered = spoke[closer] - spoke[closer ^ FORWARD] <= CLOSING_SECONDS * _SECOND
        return HALF_CLOSED_SECONDS if answered else FIN_WAIT_SECONDS
    return UNANSWERED_SECONDS if any(one & UNANSWERED for one in flags) else TCP_SECONDS


def _flags(key: bytes, value: bytes) -> int:
    return value[len(key) + 8]


def _to(key: bytes, value: bytes) -> bytes:
    """Return the tuple that a packet gets."""
    return value[8 : len(key) + 4]


def _turned(pair: bytes) -> bytes:
    width = (len(pair) - 4) // 2
    return pair[width : 2 * width] + pair[:width] + pair[2 * width + 2 :] + pair[2 * width : 2 * width + 2]


def _leads_here(held: Entries, key: bytes, value: bytes) -> bool:
    """Whether the connection of endpoint -> node:port still leaves by that port; a later one took over the rest."""
    forward = _turned(_to(key, value)) + key[-4:-3] + _HOOKS[EGRESS]
    return forward in held and _to(forward, held[forward]) == _turned(key[:-4])


def _connection(held: Entries, key: bytes, value: bytes) -> dict[bytes, bytes]:
    """Return the entries of the connection that an entry belongs to, itself included."""
    found = {key: value}
    between = _to(key, value) if key[-3] == INGRESS else key[:-4]
    for other in _others(held, between if _flags(key, value) & FORWARD else _turned(between), key[-4:-3]):
        found[other] = held[other]
    return found


def _others(held: Entries, between: bytes, protocol: bytes) -> Iterator[bytes]:
    """Yield the keys of a connection's entries; between: its tuple from client to endpoint between the hooks."""
    out, back = between + protocol + _HOOKS[EGRESS], _turned(between) + protocol + _HOOKS[EGRESS]
    if out in held and _flags(out, held[out]) & FORWARD:
        yield out
        leaves = _to(out, held[out])
        if _flags(out, held[out]) & DIRECT:
            yield from _leading(held, leaves + protocol + _HOOKS[INGRESS], between)
        else:
            yield from _leading(held, _turned(leaves) + protocol + _HOOKS[INGRESS], _turned(between))
    if back in held and not _flags(back, held[back]) & FORWARD:
        yield back
        yield from _leading(held, _turned(_to(back, held[back])) + protocol + _HOOKS[INGRESS], between)


def _leading(held: Entries, key: bytes, to: bytes) -> Iterator[bytes]:
    """Yield a key whose entry leads to that tuple."""
    if key in held and _to(key, held[key]) == to:
        yield key
