"""Send one SCTP INIT to an address, and say who of the pods here got it: sctp.py ADDRESS PORT POD...

For kernels without SCTP sockets: an INIT with a valid checksum is enough to open a connection for NAT and filters.
Prints JSON: {"pods": [[name, port], ...]}.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import sys

CLONE_NEWNET = 0x40000000
INIT, TAG, WAIT_SECONDS = 1, 0x1234ABCD, 60.0


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 9260, appendix A)."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _bit in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def init(port: int) -> bytes:
    chunk = struct.pack("!BBHIIHHI", INIT, 0, 20, TAG, 65536, 1, 1, TAG)
    unsigned = struct.pack("!HHII", 40000 + os.getpid() % 20000, port, 0, 0) + chunk
    return unsigned[:8] + struct.pack("<I", crc32c(unsigned)) + unsigned[12:]


def raw(namespace: str) -> socket.socket:
    """Return a raw SCTP socket of a namespace."""
    with open(namespace) as there, open("/proc/thread-self/ns/net") as home:
        libc = ctypes.CDLL(None)
        if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
            sys.exit(f"cannot enter {namespace}")
        made = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_SCTP)
        libc.setns(home.fileno(), CLONE_NEWNET)
    return made


def main(address: str, port: str, *pods: str) -> None:
    listeners = {raw(f"/run/netns/{pod}"): pod for pod in pods}
    raw("/proc/self/ns/net").sendto(init(int(port)), (address, 0))
    seen = []
    for ready in select.select(list(listeners), [], [], WAIT_SECONDS)[0]:
        packet = ready.recv(2048)
        payload = packet[(packet[0] & 15) * 4 :]
        (got,) = struct.unpack_from("!H", payload, 2)
        if struct.unpack_from("!I", payload, 16) == (TAG,):
            seen.append([listeners[ready], got])
    print(json.dumps({"pods": seen}))


if __name__ == "__main__":
    main(*sys.argv[1:])
