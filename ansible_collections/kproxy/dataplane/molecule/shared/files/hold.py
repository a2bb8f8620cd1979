"""Open one connection and use it until told to end: hold.py NAMESPACE ADDRESS PORT STATE_FILE.

The state file says how many answers came, from which pod, and what went wrong, if anything did.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time

# Longer than a node is without network in any scenario: TCP carries on after it.
SECONDS = 60.0
PAUSE_SECONDS = 0.1
CLONE_NEWNET = 0x40000000


def write(path: str, state: dict[str, object]) -> None:
    with open(path + ".new", "w", encoding="utf-8") as stream:
        json.dump(state, stream)
    os.replace(path + ".new", path)


def main(namespace: str, address: str, port: str, path: str) -> None:
    if namespace:
        with open(f"/run/netns/{namespace}") as handle:
            if ctypes.CDLL(None).setns(handle.fileno(), CLONE_NEWNET) != 0:
                sys.exit(f"cannot enter {namespace}")
    state: dict[str, object] = {"answers": 0, "error": ""}
    answers = 0
    try:
        with socket.create_connection((address, int(port)), timeout=SECONDS) as connection:
            state["local"] = connection.getsockname()[:2]
            stream = connection.makefile("r")
            while True:
                connection.sendall(b"who\n")
                line = stream.readline()
                if not line:
                    raise ConnectionError("closed by the other end")
                answers += 1
                state.update(answers=answers, pod=json.loads(line)["pod"])
                write(path, state)
                time.sleep(PAUSE_SECONDS)
    except OSError as error:
        state["error"] = repr(error)
        write(path, state)


if __name__ == "__main__":
    main(*sys.argv[1:])
