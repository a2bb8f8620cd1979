"""Open one new TCP connection after another until ended by SIGTERM: load.py NAMESPACE STATE_FILE ADDRESS PORT...

Each connection asks one question and closes. The state file says how many were answered, and when and how the
others failed.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import socket
import sys
import time

# For a connection, which is the kernel's matter: a packet lost on the way is sent again within it. Whoever answers may
# have to wait for a processor.
SECONDS, ANSWER_SECONDS = 5.0, 60.0
# As many as a busy client makes. Without a pause the ephemeral ports come round within netfilter's memory of ended
# connections, which renames ports then.
PAUSE_SECONDS = 0.02
CLONE_NEWNET = 0x40000000


class Ended(Exception):
    """SIGTERM has come."""


def end(_number: int, _frame: object) -> None:
    raise Ended


def main(namespace: str, path: str, *targets: str) -> None:
    if namespace:
        with open(f"/run/netns/{namespace}") as handle:
            if ctypes.CDLL(None).setns(handle.fileno(), CLONE_NEWNET) != 0:
                sys.exit(f"cannot enter {namespace}")
    addresses = list(zip(targets[::2], map(int, targets[1::2]), strict=True))
    answered, failed = 0, list[str]()
    signal.signal(signal.SIGTERM, end)
    try:
        for number, (address, port) in enumerate(itertools.cycle(addresses)):
            try:
                with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as connection:
                    connection.settimeout(SECONDS)
                    connection.connect((address, port))
                    connection.settimeout(ANSWER_SECONDS)
                    connection.sendall(b"who\n")
                    if not connection.recv(4096):
                        raise ConnectionError("closed without an answer")
                answered += 1
            except OSError as error:
                failed.append(f"{time.strftime('%H:%M:%S')} {address}:{port}: {error!r}")
            time.sleep(PAUSE_SECONDS)
            if number % 50 == 0:
                write(path, answered, failed)
    except Ended:
        write(path, answered, failed)


def write(path: str, answered: int, failed: list[str]) -> None:
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump({"answered": answered, "failed": failed}, stream)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main(*sys.argv[1:])
