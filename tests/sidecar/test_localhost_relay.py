"""The loopback relay on real sockets."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import localhost_relay
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.localhost_relay import (
    LocalhostRelays,
    Picker,
    Relay,
    RelayKey,
)
from devtools.serving_probe import OnLoop
from devtools.waiting import eventually

PORT = 31321
V4 = RelayKey(4, PORT)
RESET_ME = b"reset"


class Backend:
    """Greets with its name, then echoes until the client ends, then says goodbye."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = (address, 5000)
        self._listener = socket.create_server(self.address)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        # A thread that still waits could serve the next test's clients, by the same number of a descriptor.
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _peer = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.sendall(self.name.encode() + b"\n")
            while data := connection.recv(65536):
                if data == RESET_ME:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, localhost_relay.RESET_ON_CLOSE)
                    connection.close()
                    return
                connection.sendall(data)
            connection.sendall(b"bye\n")
            connection.close()
        except OSError:
            return


@pytest.fixture
def backends(on_loop: OnLoop) -> Iterator[list[Backend]]:
    made = [Backend("one", "127.0.1.1"), Backend("two", "127.0.1.2")]
    yield made
    for backend in made:
        backend.close()


@pytest.fixture
def relays(on_loop: OnLoop) -> LocalhostRelays:
    return LocalhostRelays()


def relay(*backends: Backend, affinity_seconds: int = 0) -> Relay:
    return Relay("registry/images/TCP", tuple(backend.address for backend in backends), affinity_seconds)


def dial() -> socket.socket:
    return socket.create_connection(("127.0.0.1", PORT), timeout=60)


def greeting() -> str:
    with dial() as client:
        return client.makefile().readline().strip()


def refused() -> bool:
    try:
        dial().close()
    except ConnectionRefusedError:
        return True
    return False


def read_to_end(client: socket.socket) -> bytes:
    chunks = []
    while data := client.recv(65536):
        chunks.append(data)
    return b"".join(chunks)


def test_every_endpoint_is_used_and_both_directions_end_in_order(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]
) -> None:
    on_loop(lambda: relays.update({V4: relay(*backends)}))
    assert {greeting() for _ in range(40)} == {"one", "two"}
    with dial() as client:
        client.sendall(b"payload")
        # The client ends its half; the answer must still arrive whole.
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client).split(b"\n", 1)[1] == b"payloadbye\n"


def test_megabytes_pass_while_a_slow_reader_holds_the_sender_back(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]
) -> None:
    on_loop(lambda: relays.update({V4: relay(backends[0])}))
    block = bytes(range(256)) * 4096  # 1 MiB
    most = 512
    with dial() as client:
        client.setblocking(False)
        sent = bytearray()
        # Nothing is read for the moment. Once the kernel's buffers are full, the relay must hold the sender back.
        while len(sent) < most * len(block) and select.select([], [client], [], 0.5)[1]:
            sent += block[: client.send(block)]
            assert len(sent) < most * len(block), "the relay swallows everything"
        client.setblocking(True)
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client) == b"one\n" + bytes(sent) + b"bye\n"


def test_the_listener_comes_and_goes_with_the_endpoints(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]
) -> None:
    on_loop(lambda: relays.update({V4: relay()}))
    assert refused()
    on_loop(lambda: relays.update({V4: relay(backends[0])}))
    assert greeting() == "one"
    on_loop(lambda: relays.update({V4: relay(backends[1])}))
    assert greeting() == "two"
    with dial() as client:
        reader = client.makefile()
        assert reader.readline() == "two\n"
        on_loop(lambda: relays.update({V4: relay()}))
        assert refused()
        client.sendall(b"still here\n")
        assert reader.readline() == "still here\n", "losing endpoints must not cut an open connection"
    assert on_loop(relays.counters).listeners == {4: 0, 6: 0}


def test_a_deleted_node_port_takes_its_connections_along(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]
) -> None:
    on_loop(lambda: relays.update({V4: relay(backends[0])}))
    assert on_loop(relays.counters).listeners == {4: 1, 6: 0}
    with dial() as client:
        assert client.makefile().readline() == "one\n"
        on_loop(lambda: relays.update({}))
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert refused()


def test_a_dead_endpoint_costs_nothing_while_another_lives(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]
) -> None:
    nobody = Relay("registry/images/TCP", (("127.0.1.9", 5000), backends[0].address))
    on_loop(lambda: relays.update({V4: nobody}))
    assert {greeting() for _ in range(10)} == {"one"}
    on_loop(lambda: relays.update({V4: Relay("registry/images/TCP", (("127.0.1.9", 5000),))}))
    # The reset may already meet connect().
    with pytest.raises(ConnectionResetError), dial() as client:
        client.recv(1)


def test_affinity_pins_the_whole_listener_until_its_endpoint_leaves(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]
) -> None:
    on_loop(lambda: relays.update({V4: relay(*backends, affinity_seconds=10800)}))
    chosen = {greeting() for _ in range(20)}
    assert len(chosen) == 1
    left = next(backend for backend in backends if backend.name not in chosen)
    on_loop(lambda: relays.update({V4: relay(left, affinity_seconds=10800)}))
    assert greeting() == left.name
    on_loop(lambda: relays.update({V4: relay(*backends, affinity_seconds=10800)}))
    assert {greeting() for _ in range(20)} == {left.name}


def test_a_backend_that_resets_resets_the_client(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]
) -> None:
    on_loop(lambda: relays.update({V4: relay(backends[0])}))
    with dial() as client:
        assert client.makefile().readline() == "one\n"
        client.sendall(RESET_ME)
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_taken_port_is_counted_and_tried_again(
    on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(localhost_relay, "RETRY_SECONDS", 0.02)
    with socket.create_server(("127.0.0.1", PORT)):
        on_loop(lambda: relays.update({V4: relay(backends[0])}))
        assert on_loop(relays.counters).creation_failures[4] >= 1
    eventually(lambda: on_loop(relays.counters).listeners[4] == 1, "the listener to be opened")
    assert greeting() == "one"


def test_both_families(on_loop: OnLoop, relays: LocalhostRelays, backends: list[Backend]) -> None:
    on_loop(lambda: relays.update({RelayKey(6, PORT): relay(backends[0])}))
    with socket.create_connection(("::1", PORT), timeout=60) as client:
        assert client.makefile().readline() == "one\n"
    assert refused()


def test_a_pin_expires_without_connections() -> None:
    now = [0.0]
    picker = Picker(clock=lambda: now[0], shuffle=lambda candidates: candidates.sort())
    service = Relay("registry/images/TCP", (("10.0.0.1", 1), ("10.0.0.2", 1)), affinity_seconds=60)
    picker.connected(service, ("10.0.0.2", 1))
    now[0] = 59.0
    assert picker.candidates(service)[0] == ("10.0.0.2", 1)
    now[0] = 60.0
    assert picker.candidates(service)[0] == ("10.0.0.1", 1)
