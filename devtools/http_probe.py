"""One HTTP request, as a load balancer's probe sends it."""

from __future__ import annotations

import http.client
from typing import NamedTuple


class Page(NamedTuple):
    """An HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def get(port: int, path: str = "/", address: str = "127.0.0.1", method: str = "GET") -> Page:
    """Return the answer. Raises OSError (ConnectionRefusedError: nothing listens) or http.client.HTTPException."""
    connection = http.client.HTTPConnection(address, port, timeout=60)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Page(response.status, dict(response.getheaders()), response.read())
    finally:
        connection.close()


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether anything accepts connections there."""
    try:
        get(port, address=address)
    except ConnectionRefusedError:
        return False
    except (http.client.HTTPException, OSError):
        return True
    return True
