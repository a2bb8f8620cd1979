"""What a host sends and which ICMP errors it gets, as its device sees them."""

from __future__ import annotations

import select
import socket
import struct
from typing import NamedTuple

from devtools.conformance.netns import NetworkNamespace
from tests.packets.ebpf import frames
from tests.packets.ebpf.one_node import WAIT

_ETH_P_ALL, _PACKET_OUTGOING = 3, 4
_SOL_PACKET, _PACKET_AUXDATA = 263, 8
_CSUM_NOT_READY = 1 << 3


class Seen(NamedTuple):
    """One IP packet. unfinished: its checksum has been left to hardware."""

    packet: bytes
    unfinished: bool

    @property
    def is_error(self) -> bool:
        if self.packet[0] >> 4 == 4:
            return self.packet[9] == frames.ICMP and self.packet[20] == 3
        return self.packet[6] == frames.ICMP6 and self.packet[40] < 128


class Capture:
    """A tap on one device; `sent` and `errors` grow with what it sees."""

    def __init__(self, namespace: NetworkNamespace, device: str = "eth0") -> None:
        self.sent: list[Seen] = []
        self.errors: list[Seen] = []
        with namespace.entered():
            # Neither sees what was before: bound at once, and to the protocol only then.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            self._socket.bind((device, _ETH_P_ALL))

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def error(self) -> Seen:
        """Wait for the next error. Raises TimeoutError."""
        known = len(self.errors)
        while len(self.errors) == known:
            if not select.select([self._socket], [], [], WAIT)[0]:
                raise TimeoutError(f"no error came; sent: {[seen.packet.hex() for seen in self.sent]}")
            self._read()
        return self.errors[-1]

    def drain(self) -> None:
        """Read what has been seen until now."""
        while select.select([self._socket], [], [], 0)[0]:
            self._read()

    def _read(self) -> None:
        packet, ancillary, _flags, address = self._socket.recvmsg(1 << 17, 64)
        ((_level, _kind, data),) = ancillary
        seen = Seen(packet, bool(struct.unpack_from("=I", data)[0] & _CSUM_NOT_READY))
        if address[2] == _PACKET_OUTGOING:
            self.sent.append(seen)
        elif seen.is_error:
            self.errors.append(seen)
