"""What the judge makes of connections, one row per rule of the corpus's README."""

from __future__ import annotations

import pytest

from devtools.conformance.corpus import Client, Destination, Expectation, Probe, SocketAddress
from devtools.conformance.judge import Circumstances, judge
from devtools.conformance.observation import ANSWERED, REJECTED, SILENT, Observation

CLIENT, NODE = "10.244.1.9", "192.0.2.11"
A, B, C = (SocketAddress(f"10.244.1.{number}", 8080) for number in (1, 2, 3))
OWN = SocketAddress(CLIENT, 8080)
TO = Destination("10.96.0.5", "TCP", 80)
LOOPBACK = ("127.0.0.1", 31000, "TCP")

REJECT, SILENCE = Observation(REJECTED), Observation(SILENT)


def hit(server: SocketAddress, client: int = 0, masqueraded: bool = False, source: str = NODE) -> Observation:
    return Observation(ANSWERED, client, server, source if masqueraded else CLIENT, not masqueraded)


def dnat(*endpoints: SocketAddress, masquerade: bool | None = False, **more: object) -> Expectation:
    wanted = None if masquerade is None else dict.fromkeys(endpoints, masquerade)
    return Expectation("dnat", endpoints, wanted, **more)  # type: ignore[arg-type]


HISTORY = {"first": dict.fromkeys(range(10), A)}

ROWS = [
    # name, expectation, seen, what the complaint says ("" for none)
    ("reject", Expectation("reject"), [REJECT], ""),
    ("reject, silent", Expectation("reject"), [SILENCE], "got silence, wanted reject"),
    ("drop", Expectation("drop"), [SILENCE], ""),
    ("drop, rejected", Expectation("drop"), [REJECT], "got reject, wanted drop"),
    ("drop, mixed", Expectation("drop"), [SILENCE, REJECT], "got reject, wanted drop"),
    ("nothing seen", Expectation("drop"), [], "no connection"),
    ("pass", Expectation("pass"), [hit(SocketAddress(TO.ip, 80))], ""),
    ("pass, translated", Expectation("pass"), [hit(A)], "wanted pass"),
    ("pass, masqueraded", Expectation("pass"), [hit(SocketAddress(TO.ip, 80), masqueraded=True)], "wanted pass"),
    ("pass, refused", Expectation("pass"), [REJECT], "got reject, wanted pass"),
    ("dnat", dnat(A, B), [hit(A), hit(B)] * 10, ""),
    ("dnat, one missing", dnat(A, B), [hit(A)] * 20, f"wanted also {B}"),
    ("dnat, one too many", dnat(A, B), [hit(A), hit(B), hit(C)], f"got answer of {C}"),
    ("dnat, one silent", dnat(A), [hit(A)] * 19 + [SILENCE], "got silence"),
    ("dnat, uneven", dnat(A, B), [hit(A)] * 90 + [hit(B)] * 30, "uneven"),
    ("dnat, even enough", dnat(A, B), [hit(A)] * 70 + [hit(B)] * 50, ""),
    ("masquerade", dnat(A, masquerade=True), [hit(A, masqueraded=True)], ""),
    ("masquerade missing", dnat(A, masquerade=True), [hit(A)], "wanted masquerade"),
    ("masquerade by a stranger", dnat(A, masquerade=True), [hit(A, masqueraded=True, source="192.0.2.99")],
     "wanted an address of the node"),
    ("masquerade needless", dnat(A), [hit(A, masqueraded=True)], "wanted the client's own"),
    ("masquerade, either", dnat(A, masquerade=None), [hit(A), hit(A, masqueraded=True)], ""),
    ("to itself, kinder", dnat(OWN), [hit(OWN, masqueraded=True)], ""),
    ("one group", dnat(A, B, C, groups=((A, B), (C,))), [hit(A), hit(B)] * 10, ""),
    ("two groups", dnat(A, B, C, groups=((A, B), (C,))), [hit(A), hit(C)] * 10, "wanted one group"),
    ("half a group", dnat(A, B, C, groups=((A, B), (C,))), [hit(A)] * 20, f"wanted also {B}"),
    ("same", dnat(A, B, same_as="first"), [hit(A, number) for number in range(10)], f"wanted also {B}"),
    ("moved", dnat(A, B, same_as="first"), [hit(A), hit(B, 1)], "wanted the same endpoint as first"),
    ("free", dnat(A, B, independent_of="first"), [hit(A if number % 2 else B, number) for number in range(10)], ""),
    ("bound", dnat(A, B, independent_of="first"), [hit(A, number) for number in range(10)], "wanted a free choice"),
]  # fmt: skip


@pytest.mark.parametrize(("expect", "seen", "complaint"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_judge(expect: Expectation, seen: list[Observation], complaint: str) -> None:
    probe = Probe(Client(CLIENT, "pod-local"), TO, expect)
    found = judge(probe, seen, HISTORY, Circumstances([NODE]))
    if complaint:
        assert any(complaint in problem for problem in found), found
    else:
        assert found == []


def test_refused_loopback_passes_where_the_product_may_listen() -> None:
    probe = Probe(Client("127.0.0.1", "node"), Destination(LOOPBACK[0], "TCP", LOOPBACK[1]), Expectation("pass"))
    assert judge(probe, [REJECT], {}, Circumstances([NODE], unserved=[LOOPBACK])) == []
    assert judge(probe, [REJECT], {}, Circumstances([NODE])) != []


def test_socket_translation_needs_no_hairpin_masquerade() -> None:
    probe = Probe(Client(CLIENT, "pod-local"), TO, dnat(OWN, masquerade=True))
    assert judge(probe, [hit(OWN)], {}, Circumstances([NODE], needless_masquerade=True)) == []
    assert judge(probe, [hit(OWN)], {}, Circumstances([NODE])) != []
