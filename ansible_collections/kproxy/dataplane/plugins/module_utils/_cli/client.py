# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""One question to the running kproxyd over its unix socket."""

from __future__ import annotations

import json
import socket
from typing import Any

PROTOCOL_VERSION = 1
TIMEOUT_SECONDS = 40.0


class DaemonDown(Exception):
    """Nobody answers on the socket; the message says what to do."""


class Refused(Exception):
    """The daemon cannot answer this question; the message says why."""


def ask(path: str, command: str, **arguments: object) -> Any:
    """Return the result of a command. Raises DaemonDown or Refused."""
    request = json.dumps({"version": PROTOCOL_VERSION, "command": command, **arguments}).encode() + b"\n"
    chunks: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_SECONDS)
        try:
            connection.connect(path)
            connection.sendall(request)
            while not chunks or not chunks[-1].endswith(b"\n"):
                chunk = connection.recv(1 << 20)
                if not chunk:
                    raise DaemonDown(f"kproxyd closed the connection on {path}; see journalctl -u kproxyd")
                chunks.append(chunk)
        except PermissionError:
            raise DaemonDown(f"{path} may only be opened by root; run kproxyctl with sudo") from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise DaemonDown(
                f"kproxyd is not running (nothing listens on {path}). What is programmed keeps forwarding. "
                "Look with: systemctl status kproxyd; journalctl -u kproxyd. Start with: systemctl start kproxyd"
            ) from None
        except OSError as error:
            raise DaemonDown(f"kproxyd does not answer on {path}: {error}; see systemctl status kproxyd") from None
    document = json.loads(b"".join(chunks))
    if not document.get("ok"):
        raise Refused(str(document.get("error")))
    return document["result"]
