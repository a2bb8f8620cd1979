"""Connections between the namespaces of a world, all driven by one event loop in one thread.

A socket belongs to the namespace in which it was made, whoever uses it later. So this process makes listeners and
clients in their namespaces, then waits for all of them at once: waits for silence overlap.
A TCP or UDP server answers with a line that says which listener it is and whom it sees; a client thereby learns where
it ended up, and the way back is proved too. ICMP and SCTP go through rawtraffic.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from devtools.conformance.corpus import Client, Destination, SocketAddress, canonical, family
from devtools.conformance.judge import SOCKET_KINDS
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import NodeCgroup
from devtools.conformance.observation import ANSWERED, FAILED, REJECTED, SILENT, Observation
from devtools.conformance.rawtraffic import Capture, IcmpEcho, SctpInit, SctpListener
from devtools.conformance.world import World

SILENCE_SECONDS = {"TCP": 2.4, "UDP": 0.7, "ICMP": 0.7, "SCTP": 0.7}
"""How long no answer has to last to be silence. TCP: an ICMP error that arrives while connect() holds the socket is
lost (LockDroppedIcmps) until the SYN is sent again after 1 s."""

QUIET_SECONDS = 0.3
"""How long nobody has to act before anybody is silent: on a busy machine packets are on their way for a while."""

# Something in the loop is wrong if it is busy for so long.
_LONGEST_SECONDS = 60.0

REFUSALS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENOPROTOOPT, errno.EACCES, errno.ENONET)
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Shot:
    """One connection to make."""

    client: Client
    number: int
    to: Destination
    own_endpoints: frozenset[SocketAddress] = frozenset()
    """Endpoints with the client's own address: its kernel discards such a packet, so it is looked for on the wire."""


@dataclass
class _Flight:
    shot: Shot
    index: int
    socket: socket.socket
    deadline: float
    source: tuple[str, int]
    received: bytes = b""


class Traffic:
    """Listeners and clients of one world."""

    def __init__(self, world: World, node_cgroup: NodeCgroup | None = None) -> None:
        self._world = world
        self._node_cgroup = node_cgroup
        self._selector = selectors.DefaultSelector()
        self._acted = 0.0
        self._results: dict[int, Observation] = {}
        self._flights: dict[int, _Flight] = {}
        self._captures: list[Capture] = []
        self._sctp: dict[tuple[NetworkNamespace, str], SctpListener] = {}

    def listen(self, places: Iterable[tuple[SocketAddress, str]]) -> None:
        """Serve every (address, protocol) in the namespaces that own the address."""
        for address, protocol in dict.fromkeys(places):
            for namespace in self._world.owner(address.ip):
                if protocol == "TCP":
                    self._listen_tcp(namespace, address)
                elif protocol == "UDP":
                    self._listen_udp(namespace, address)
                elif protocol == "SCTP":
                    self._listen_sctp(namespace, address)

    def shoot(self, shots: Sequence[Shot]) -> list[Observation]:
        """Make all connections, those of TCP and UDP at once; return what came of each, in order."""
        self._results.clear()
        self._open_captures(shots)
        raw = []
        for index, shot in enumerate(shots):
            if shot.to.protocol in ("TCP", "UDP"):
                self._launch(index, shot)
            else:
                raw.append((index, shot))
        self._drain()
        # One raw socket gets the errors of another to the same address, so these go one after the other.
        for index, shot in raw:
            self._results[index] = self._shoot_raw(shot)
        for capture in self._captures:
            self._unregister(capture.socket)
        self._captures.clear()
        return [self._results[index] for index in range(len(shots))]

    def close(self) -> None:
        """Stop listening."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            self._unregister(key.fileobj)
        self._selector.close()

    # -- servers ---------------------------------------------------------------------------------------------------

    def _bound(self, namespace: NetworkNamespace, kind: socket.SocketKind, address: SocketAddress) -> socket.socket:
        with namespace.entered():
            sock = socket.socket(socket.AF_INET6 if family(address.ip) == 6 else socket.AF_INET, kind)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.ip, address.port))
        return sock

    def _listen_tcp(self, namespace: NetworkNamespace, address: SocketAddress) -> None:
        sock = self._bound(namespace, socket.SOCK_STREAM, address)
        sock.listen(1024)

        def accept() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    connection, peer = sock.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.send(_banner(address, peer))

        self._selector.register(sock, selectors.EVENT_READ, accept)

    def _listen_udp(self, namespace: NetworkNamespace, address: SocketAddress) -> None:
        sock = self._bound(namespace, socket.SOCK_DGRAM, address)

        def answer() -> None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    try:
                        _, peer = sock.recvfrom(512)
                        sock.sendto(_banner(address, peer), peer)
                    except (ConnectionError, PermissionError):
                        continue

        self._selector.register(sock, selectors.EVENT_READ, answer)

    def _listen_sctp(self, namespace: NetworkNamespace, address: SocketAddress) -> None:
        listener = self._sctp.get((namespace, address.ip))
        if listener is None:
            listener = self._sctp[namespace, address.ip] = SctpListener(namespace, address.ip)
            self._selector.register(listener.socket, selectors.EVENT_READ, listener.receive)
        listener.ports.add(address.port)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _namespace(self, client: Client) -> NetworkNamespace:
        return self._world.client_namespace(client.ip, client.on_node, client.interface)

    def _client_socket(self, client: Client, family: int, kind: int) -> socket.socket:
        """Make a client's socket; what runs on the node under test belongs to that node's cgroup, if it has one."""
        namespace = self._namespace(client)
        if self._node_cgroup is not None and client.kind in SOCKET_KINDS:
            return self._node_cgroup.socket(namespace.descriptor, family, kind)
        with namespace.entered():
            return socket.socket(family, kind)

    def _launch(self, index: int, shot: Shot) -> None:
        stream = shot.to.protocol == "TCP"
        sock = self._client_socket(
            shot.client,
            socket.AF_INET6 if family(shot.client.ip) == 6 else socket.AF_INET,
            socket.SOCK_STREAM if stream else socket.SOCK_DGRAM,
        )
        sock.setblocking(False)
        sock.bind((shot.client.ip, 0))
        flight = _Flight(
            shot, index, sock, time.monotonic() + SILENCE_SECONDS[shot.to.protocol], sock.getsockname()[:2]
        )
        self._flights[index] = flight
        # Captured packets of this flight are told apart by its source port, which is known only now.
        for capture in self._captures:
            if capture.client_ip == shot.client.ip:
                capture.waiting[shot.to.protocol, flight.source[1]] = lambda to: self._captured(flight, to)
        if stream:
            error = sock.connect_ex((shot.to.ip, shot.to.port))
            if error not in (0, errno.EINPROGRESS):
                self._finish(flight, _failure(shot, error))
                return
            events = selectors.EVENT_WRITE
        else:
            # On the node a filtered send fails with EPERM, rejected or dropped alike: the receive tells them apart.
            with contextlib.suppress(PermissionError):
                try:
                    sock.connect((shot.to.ip, shot.to.port))
                    sock.send(b"probe")
                except ConnectionRefusedError:
                    self._finish(flight, Observation(REJECTED, shot.number))
                    return
            events = selectors.EVENT_READ
        self._selector.register(sock, events, lambda: self._progress(flight))

    def _progress(self, flight: _Flight) -> None:
        if flight.index not in self._flights:
            return
        try:
            data = flight.socket.recv(512)
        except BlockingIOError:
            # Connected and nothing to read yet: the banner is on its way.
            self._selector.modify(flight.socket, selectors.EVENT_READ, lambda: self._progress(flight))
            return
        except OSError as error:
            self._finish(flight, _failure(flight.shot, error.errno or 0))
            return
        flight.received += data
        if flight.received.endswith(b"\n"):
            self._finish(flight, _answer(flight))
        elif not data:
            self._finish(flight, Observation(FAILED, flight.shot.number, detail="closed without an answer"))

    def _finish(self, flight: _Flight, observation: Observation) -> None:
        if self._flights.pop(flight.index, None) is None:
            return
        self._results[flight.index] = observation
        if flight.shot.to.protocol == "TCP":
            flight.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._unregister(flight.socket)

    def _unregister(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(sock)
        sock.close()

    def _drain(self) -> None:
        # Servers answer from this loop, too: nobody is silent before they had their turn, however busy the machine is.
        begun = time.monotonic()
        for flight in self._flights.values():
            flight.deadline = begun + SILENCE_SECONDS[flight.shot.to.protocol]
        while self._flights:
            busy = self._poll(min(flight.deadline for flight in self._flights.values()))
            if busy and time.monotonic() < begun + _LONGEST_SECONDS:
                continue
            for flight in [flight for flight in self._flights.values() if flight.deadline <= time.monotonic()]:
                self._finish(flight, Observation(SILENT, flight.shot.number))

    def _poll(self, deadline: float) -> bool:
        """Let everybody act who can; return whether anybody could until the deadline, and for a while before it."""
        wait = max(deadline, self._acted + QUIET_SECONDS) - time.monotonic()
        # One that was stopped while it waited is told of nothing when it goes on; so it looks once more.
        ready = self._selector.select(max(wait, 0)) or self._selector.select(0)
        for key, _ in ready:
            callback: Callable[[], None] = key.data
            callback()
        if ready:
            self._acted = time.monotonic()
        return bool(ready)

    # -- beside the usual sockets ------------------------------------------------------------------------------------

    def _open_captures(self, shots: Sequence[Shot]) -> None:
        for client, endpoints in {shot.client: shot.own_endpoints for shot in shots if shot.own_endpoints}.items():
            capture = Capture(self._namespace(client), client.ip, endpoints)
            self._selector.register(capture.socket, selectors.EVENT_READ, capture.receive)
            self._captures.append(capture)

    def _captured(self, flight: _Flight, to: SocketAddress) -> None:
        self._finish(flight, Observation(ANSWERED, flight.shot.number, to, flight.shot.client.ip, True, "on the wire"))

    def _shoot_raw(self, shot: Shot) -> Observation:
        namespace = self._namespace(shot.client)
        probe: IcmpEcho | SctpInit
        if shot.to.protocol == "ICMP":
            probe = IcmpEcho(namespace, shot.client.ip, shot.to.ip)
        else:
            probe = SctpInit(namespace, shot.client.ip, shot.to.ip, shot.to.port)
        self._selector.register(probe.socket, selectors.EVENT_READ, probe.receive)
        deadline = time.monotonic() + SILENCE_SECONDS[shot.to.protocol]
        try:
            probe.send()
            while True:
                if probe.error:
                    return _failure(shot, probe.error)
                answer = self._echo(probe, shot) if isinstance(probe, IcmpEcho) else self._arrival(probe, shot)
                if answer is not None:
                    return answer
                if not self._poll(deadline):
                    return Observation(SILENT, shot.number)
        finally:
            self._unregister(probe.socket)

    @staticmethod
    def _echo(probe: IcmpEcho, shot: Shot) -> Observation | None:
        return Observation(ANSWERED, shot.number) if probe.answered else None

    def _arrival(self, probe: SctpInit, shot: Shot) -> Observation | None:
        for listener in self._sctp.values():
            seen = listener.seen.pop(probe.tag, None)
            if seen is not None:
                kept = seen.source[0] == shot.client.ip and (not shot.client.on_node or seen.source == probe.source)
                return Observation(ANSWERED, shot.number, seen.server, seen.source[0], kept)
        return None


def _banner(server: SocketAddress, peer: Sequence[object]) -> bytes:
    return f"{server} {SocketAddress(str(peer[0]), int(str(peer[1])))}\n".encode()


def _answer(flight: _Flight) -> Observation:
    server, peer = (SocketAddress.parse(text) for text in flight.received.decode().split())
    client = flight.shot.client
    # The node's address is the node's, masqueraded or not; then the port tells.
    kept = peer.ip == canonical(client.ip) and (not client.on_node or peer.port == flight.source[1])
    return Observation(ANSWERED, flight.shot.number, server, peer.ip, kept)


def _failure(shot: Shot, error: int) -> Observation:
    if error in REFUSALS:
        return Observation(REJECTED, shot.number, detail=errno.errorcode[error])
    if error == errno.ETIMEDOUT:
        return Observation(SILENT, shot.number)
    return Observation(FAILED, shot.number, detail=errno.errorcode.get(error, str(error)))
