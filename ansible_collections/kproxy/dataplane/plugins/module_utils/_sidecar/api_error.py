# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between us and an API server, sorted by what to do about it."""

from __future__ import annotations

import enum


class Fault(enum.Enum):
    """One kind of failure; the value is the label of the watch error metric."""

    CONFIGURATION = "configuration"  # our kubeconfig, certificate or token files are unusable
    CONNECT = "connect"  # refused, unreachable, or no answer to the connection attempt
    TLS = "tls"  # the handshake failed, most often an unknown authority or a wrong name
    TIMEOUT = "timeout"  # connected, then silence
    CLOSED = "closed"  # the connection ended in the middle of an answer
    GARBAGE = "garbage"  # the answer is no HTTP, no JSON, or not what was asked for
    UNAUTHORIZED = "unauthorized"  # 401
    FORBIDDEN = "forbidden"  # 403
    NOT_FOUND = "not_found"  # 404: the server does not know the resource
    GONE = "gone"  # 410: the version or the continue token is too old
    THROTTLED = "throttled"  # 429
    BAD_REQUEST = "bad_request"  # 400: the server does not understand a parameter
    REFUSED = "refused"  # any other answer that is not 200
    SERVER = "server"  # 5xx
    INTERNAL = "internal"  # a mistake of ours

    @property
    def blames_server(self) -> bool:
        """Return whether another server may do better."""
        return self in _SERVER_FAULTS


# A server that is being shut down throttles everybody while it lets open requests end.
_SERVER_FAULTS = frozenset(
    {Fault.CONNECT, Fault.TLS, Fault.TIMEOUT, Fault.CLOSED, Fault.GARBAGE, Fault.SERVER, Fault.THROTTLED}
)
_BY_STATUS = {
    400: Fault.BAD_REQUEST,
    401: Fault.UNAUTHORIZED,
    403: Fault.FORBIDDEN,
    404: Fault.NOT_FOUND,
    410: Fault.GONE,
    429: Fault.THROTTLED,
}
_ADVICE = {
    Fault.UNAUTHORIZED: "the client certificate or token is not accepted; check its validity and its authority",
    Fault.FORBIDDEN: "bind the user to the ClusterRole system:node-proxier",
    Fault.TLS: "check the certificate authority and the server name in the kubeconfig",
    Fault.CONNECT: "check that the address is right and not filtered",
}


class ApiError(Exception):
    """A request failed.

    Attributes:
        fault: what kind of failure.
        server: the server that was asked, "" if none was.
        retry_after: seconds the server asked us to wait, 0 if it did not.
    """

    def __init__(self, fault: Fault, message: str, server: str = "", retry_after: float = 0.0) -> None:
        self.fault = fault
        self.server = server
        self.retry_after = retry_after
        advice = _ADVICE.get(fault, "")
        where = f"{server}: " if server else ""
        super().__init__(f"{where}{message}" + (f" ({advice})" if advice else ""))


def fault_of_status(code: int) -> Fault:
    """Return the kind of failure an HTTP or metav1.Status code stands for."""
    return _BY_STATUS.get(code, Fault.SERVER if code >= 500 else Fault.REFUSED)
