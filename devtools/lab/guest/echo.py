"""A pod's server: says who answered and whom it saw, over TCP, UDP and SCTP, both families.

A line is answered by a line of JSON and the connection stays; an HTTP GET gets the same JSON as its body. Arguments:
the pod's name and a JSON list of {protocol, port}.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any, cast

POD = sys.argv[1]
NODE = socket.gethostname()


def plain(address: Any) -> str:
    """Return an address without the IPv6 clothes an IPv4 client wears on a dual-stack socket."""
    return str(address[0]).removeprefix("::ffff:")


def answer(protocol: str, local: Any, peer: Any) -> bytes:
    """Return the line that identifies this pod and the client it saw."""
    saw = {"peer": plain(peer), "peer_port": peer[1], "address": plain(local), "port": local[1]}
    return json.dumps({"pod": POD, "node": NODE, "protocol": protocol, **saw}).encode() + b"\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: str) -> None:
    """Answer each line of one connection until the client closes it."""
    local, peer = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
    try:
        while line := await reader.readline():
            body = answer(protocol, local, peer)
            if line.startswith(b"GET "):
                while (await reader.readline()).strip():
                    pass
                head = f"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                break
            writer.write(body)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class Datagrams(asyncio.DatagramProtocol):
    """Answer each datagram by one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(answer("UDP", self.transport.get_extra_info("sockname"), addr), addr)


def listener(kind: int, number: int, port: int) -> socket.socket:
    """Return a bound dual-stack socket."""
    sock = socket.socket(socket.AF_INET6, kind, number)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.bind(("::", port))
    return sock


async def open_port(protocol: str, port: int) -> None:
    """Serve one port."""
    if protocol == "UDP":
        sock = listener(socket.SOCK_DGRAM, socket.IPPROTO_UDP, port)
        await asyncio.get_running_loop().create_datagram_endpoint(Datagrams, sock=sock)
        return
    number = socket.IPPROTO_SCTP if protocol == "SCTP" else socket.IPPROTO_TCP
    sock = listener(socket.SOCK_STREAM, number, port)
    await asyncio.start_server(lambda reader, writer: serve(reader, writer, protocol), sock=sock, backlog=1024)


def notify_ready() -> None:
    """Tell systemd that all ports are open (sd_notify(3))."""
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.connect(path.replace("@", "\0", 1) if path.startswith("@") else path)
            sock.send(b"READY=1")


async def main() -> None:
    for entry in json.loads(sys.argv[2]):
        await open_port(entry["protocol"], entry["port"])
    notify_ready()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
