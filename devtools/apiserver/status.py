"""metav1.Status answers: how the API server says no."""

from __future__ import annotations

from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiStatus(Exception):
    """A refusal, carried up to the connection that has to answer with it."""

    def __init__(self, code: int, message: str, *, reason: str = "", retry_after: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS.get(code, "")
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """Return the Status object."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.retry_after is not None:
            body["details"] = {"retryAfterSeconds": self.retry_after}
        return body
