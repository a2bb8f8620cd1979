"""Traffic through every hook of one node, beside a test: who notices when its programs are replaced."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter

from devtools.waiting import eventually
from tests.packets.ebpf.one_node import CLUSTER_IP, NODE, POD, World

FRONTEND = (NODE[4], 30080)
VIP = (CLUSTER_IP[4], 80)
#: Of each kind of traffic, whenever it is waited for.
ROUNDS = 20
SECONDS = 60.0


class Traffic:
    """Clients of all kinds beside the test; each notes what it has done and what it has lost."""

    def __init__(self, world: World) -> None:
        self.done: Counter[str] = Counter()
        self.lost: list[str] = []
        self._world = world
        self._ended, self._unasked = threading.Event(), threading.Event()
        self._servers = [world.serve(world.pod, POD[4], 8080, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)]
        self._clients = [threading.Thread(target=one, daemon=True) for one in (self._outsiders, self._sockets)]
        self._answering = [threading.Thread(target=one, daemon=True) for one in (self._accept, self._answer)]
        for thread in (*self._answering, *self._clients):
            thread.start()

    def wait(self) -> None:
        """Wait until everybody has done some more."""
        before = self.done.copy()
        kinds = ("held", "dialled", "datagram", "socket-dialled", "socket-datagram")
        eventually(
            lambda: self.lost or all(self.done[kind] >= before[kind] + ROUNDS for kind in kinds), "traffic", 60.0
        )

    def close(self) -> None:
        """End the clients, and then who answers them: a client that nobody answers would wait."""
        for event, threads in ((self._ended, self._clients), (self._unasked, self._answering)):
            event.set()
            for thread in threads:
                thread.join()

    def _accept(self) -> None:
        self._servers[0].settimeout(0.1)
        while not self._unasked.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _peer = self._servers[0].accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(64):
                connection.sendall(data)

    def _answer(self) -> None:
        self._servers[1].settimeout(0.1)
        while not self._unasked.is_set():
            with contextlib.suppress(TimeoutError):
                data, peer = self._servers[1].recvfrom(64)
                self._servers[1].sendto(data, peer)

    def _outsiders(self) -> None:
        """Packets of others: a connection held open, new ones, and datagrams of one socket."""
        world = self._world
        with (
            world.client_socket(world.client, 4, socket.SOCK_STREAM) as held,
            world.client_socket(world.client, 4, socket.SOCK_DGRAM) as datagrams,
        ):
            for one in (held, datagrams):
                one.settimeout(SECONDS)
                one.connect(FRONTEND)
            while not self._ended.is_set():
                with world.client_socket(world.client, 4, socket.SOCK_STREAM) as fresh:
                    fresh.settimeout(SECONDS)
                    self._try("dialled", fresh, FRONTEND)
                self._try("held", held)
                self._try("datagram", datagrams)

    def _sockets(self) -> None:
        """Calls of the node's own sockets."""
        world = self._world
        while not self._ended.is_set():
            for name, kind in (("socket-dialled", socket.SOCK_STREAM), ("socket-datagram", socket.SOCK_DGRAM)):
                with world.cgroup.socket(world.node.descriptor, socket.AF_INET, kind) as made:
                    made.settimeout(SECONDS)
                    self._try(name, made, VIP)
                    if made.getpeername() != VIP:
                        self.lost.append(f"{name}: its peer shows as {made.getpeername()}")

    def _try(self, name: str, client: socket.socket, to: tuple[str, int] | None = None) -> None:
        try:
            if to is not None:
                client.connect(to)
            client.send(name.encode())
            answer = client.recv(64)
            if answer != name.encode():
                raise ConnectionError(f"answered {answer!r}")
            self.done[name] += 1
        except OSError as error:
            self.lost.append(f"{name}: {error!r}")
