"""An endpoint that answers every byte with its own name and the source address that it saw.

Whoever dials a Service learns from the answer whose rules led the connection, and whether they masqueraded it.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from devtools.conformance.netns import NetworkNamespace


class NamedEndpoint:
    """Listens in ``namespace`` until it is closed, which ends the connections that were accepted."""

    def __init__(self, namespace: NetworkNamespace, name: str, address: str, port: int) -> None:
        self._name = name
        self._answering: list[tuple[socket.socket, threading.Thread]] = []
        with namespace.entered():
            self._listener = socket.create_server((address, port))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and answering, and see the threads end.

        Closing alone leaves a thread in ``accept``. A stop and a go-on of the process start that call again by the
        number of the descriptor, which may be the next test's listener by then.
        """
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection, thread in self._answering:
            # Those of which nothing is heard any more keep their thread, and their namespace.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:  # closed
                return
            thread = threading.Thread(target=self._answer, args=(connection, peer[0]), daemon=True)
            self._answering.append((connection, thread))
            thread.start()

    def _answer(self, connection: socket.socket, source: str) -> None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(1):
                connection.sendall(f"{self._name} {source}".encode())
