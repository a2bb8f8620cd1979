"""Dial an address as a client would, many times, and print as JSON who answered and what went wrong.

usage: dial.py PROTOCOL ADDRESS PORT [COUNT [TIMEOUT_SECONDS]]
       dial.py --batch < a JSON list of [PROTOCOL, ADDRESS, PORT, COUNT]; dials all at once and prints a list

Prints {"answers": [what the echo server said, ...], "errors": {"refused" | "timeout" | "unreachable" | text: count}}.
Each attempt is a connection of its own, so each is a new choice of endpoint.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

ERRORS = {
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
}


#: A connection is the kernel's matter and takes no time; the pod that answers may have to wait for a processor.
ANSWER_SECONDS = 30.0


def ask(protocol: str, address: str, port: int, timeout: float) -> dict[str, Any]:
    """Make one connection, send a line, return the parsed answer. timeout: until it is connected."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_DGRAM if protocol == "UDP" else socket.SOCK_STREAM
    number = {"UDP": socket.IPPROTO_UDP, "SCTP": socket.IPPROTO_SCTP}.get(protocol, socket.IPPROTO_TCP)
    with socket.socket(family, kind, number) as sock:
        sock.settimeout(timeout)
        sock.connect((address, port))
        sock.settimeout(ANSWER_SECONDS)
        sock.send(b"who\n")
        answer: dict[str, Any] = json.loads(sock.recv(4096))
        return answer


def dial(protocol: str, address: str, port: int, count: int, timeout: float) -> dict[str, Any]:
    """Make `count` connections one after another; a timeout ends the series, as more of them would only take time."""
    answers: list[dict[str, Any]] = []
    errors: Counter[str] = Counter()
    for _ in range(count):
        try:
            answers.append(ask(protocol, address, port, timeout))
        except TimeoutError:
            errors["timeout"] += 1
            break
        except OSError as error:
            errors[ERRORS.get(error.errno or 0, str(error))] += 1
    return {"answers": answers, "errors": dict(errors)}


def main(argv: list[str]) -> None:
    if argv == ["--batch"]:
        with ThreadPoolExecutor(max_workers=16) as pool:
            targets: list[tuple[str, str, int, int]] = json.load(sys.stdin)
            series = [pool.submit(dial, *target, 2.0) for target in targets]
            print(json.dumps([one.result() for one in series]))
        return
    protocol, address, port, *rest = argv
    count, timeout = int(rest[0]) if rest else 1, float(rest[1]) if len(rest) > 1 else 2.0
    print(json.dumps(dial(protocol.upper(), address, int(port), count, timeout)))


if __name__ == "__main__":
    main(sys.argv[1:])
