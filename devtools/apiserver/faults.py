"""Misbehaviour on order: which requests go wrong, how, and how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devtools.apiserver.status import ApiStatus


@dataclass(frozen=True)
class Refuse:
    """Answer with an HTTP error and a Status body."""

    code: int
    message: str = ""
    retry_after: int | None = None

    def status(self) -> ApiStatus:
        return ApiStatus(self.code, self.message or f"injected {self.code}", retry_after=self.retry_after)


@dataclass(frozen=True)
class Hang:
    """Take the request and never answer; the connection stays open until the client gives up."""


@dataclass(frozen=True)
class Drop:
    """Close the connection instead of answering."""


@dataclass(frozen=True)
class Slow:
    """Answer rightly, in pieces of `piece` bytes with a pause of `pause_seconds` before each."""

    piece: int
    pause_seconds: float


@dataclass(frozen=True)
class CutMidChunk:
    """Begin a right answer, then close the connection in the middle of a chunk after `after` bytes of body."""

    after: int


@dataclass(frozen=True)
class Garbage:
    """Answer 200 with these bytes as the body; in a watch they are one piece of the stream."""

    body: bytes = b"\x00\xff<html>not json</html>\n"


@dataclass(frozen=True)
class NotHttp:
    """Answer with bytes that are no HTTP at all."""

    raw: bytes = b"\x15\x03\x01\x00\x02\x02\x50\r\n\r\n"


@dataclass(frozen=True)
class Reply:
    """Answer 200 with a recorded body, complete."""

    body: bytes


@dataclass(frozen=True)
class ReplyStream:
    """Answer a watch with recorded lines; then close, or hold the stream open."""

    lines: Sequence[bytes]
    hold: bool = False


@dataclass(frozen=True)
class ErrorEvent:
    """Answer a watch with 200 and one ERROR event carrying this status, then close."""

    code: int
    message: str = ""


Action = Refuse | Hang | Drop | Slow | CutMidChunk | Garbage | NotHttp | Reply | ReplyStream | ErrorEvent
DISTORTING = (Slow, CutMidChunk)  # those that begin with the right answer; the others replace it
ACTIONS: Mapping[str, type[Action]] = {
    "refuse": Refuse,
    "hang": Hang,
    "drop": Drop,
    "slow": Slow,
    "cut-mid-chunk": CutMidChunk,
    "garbage": Garbage,
    "not-http": NotHttp,
    "error-event": ErrorEvent,
}


@dataclass
class Fault:
    """One order: the next `times` requests with this verb and resource meet the action."""

    action: Action
    verb: str = ""  # list, watch, get, create, update, patch, delete; empty: any
    resource: str = ""  # plural; empty: any
    times: int | None = 1  # None: until removed
    continued: bool | None = None  # only list pages with (True) or without (False) a continue token
    port: int | None = None  # only requests to the listener on this port; None: to any

    def matches(self, verb: str, resource: str, continued: bool, port: int) -> bool:
        return (
            (not self.verb or self.verb == verb)
            and (not self.resource or self.resource == resource)
            and (self.continued is None or self.continued == continued)
            and (self.port is None or self.port == port)
        )


def fault_from_mapping(order: Mapping[str, Any]) -> Fault:
    """Read a fault as the control endpoint takes it: {"action": "refuse", "code": 500, "verb": "list", ...}."""
    values = dict(order)
    name = values.pop("action")
    if name not in ACTIONS:
        raise ApiStatus(400, f"unknown action {name!r}; known: {', '.join(sorted(ACTIONS))}")
    selectors = {key: values.pop(key) for key in ("verb", "resource", "times", "continued", "port") if key in values}
    try:
        return Fault(ACTIONS[name](**values), **selectors)
    except TypeError as error:
        raise ApiStatus(400, f"action {name}: {error}") from error


@dataclass
class FaultBook:
    """The orders in force, oldest first."""

    orders: list[Fault] = field(default_factory=list)

    def add(self, fault: Fault) -> Fault:
        self.orders.append(fault)
        return fault

    def clear(self) -> None:
        self.orders.clear()

    def take(self, verb: str, resource: str, *, continued: bool = False, port: int = 0) -> Action | None:
        """Return the action the next request meets, and count it off."""
        for fault in self.orders:
            if fault.matches(verb, resource, continued, port):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self.orders.remove(fault)
                return fault.action
        return None
