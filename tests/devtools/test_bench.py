"""What the benchmarks print, and what they say about the machine; the measuring itself is a benchmark, not a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools.bench import connect, objects
from devtools.bench.iptables_rules import restore_text
from devtools.bench.listeners import ruleset_listeners


def row(path: str, services: int, ratio: float, dialled: str = "even") -> dict[str, object]:
    return {
        "path": path,
        "services": services,
        "dialled": dialled,
        "ratio_to_direct": ratio,
        "interval": [ratio - 0.01, ratio + 0.01],
    }


@pytest.mark.parametrize(
    ("services", "paths", "expected"),
    [
        pytest.param([1], ["socket-lb", "iptables-nft"], [("socket-lb", 1, "even"), ("iptables-nft", 1, "even")],
                     id="one Service has no end of a chain"),
        pytest.param([10], ["nft", "iptables-nft"],
                     [("nft", 10, "even"), ("iptables-nft", 10, "even"), ("iptables-nft", 10, "last")],
                     id="a chain is dialled evenly and at its end"),
        pytest.param([10], ["socket-lb", "tc"],
                     [("socket-lb", 10, "even"), ("socket-lb", 10, "last"), ("tc", 10, "even")],
                     id="what is compared with the end of a chain is dialled like it"),
        pytest.param([100000], ["nft", "iptables-legacy"], [("nft", 100000, "even")], id="chains have their limit"),
    ],
)  # fmt: skip
def test_rows(services: list[int], paths: list[str], expected: list[tuple[str, int, str]]) -> None:
    assert [tuple(each) for each in connect.rows(services, paths)] == expected


def test_dialled_numbers() -> None:
    assert connect.Row("nft", 10, "even").numbers == range(10)
    assert connect.Row("iptables-nft", 10, "last").numbers == range(9, 10)


def test_tc_and_the_socket_share_a_world() -> None:
    assert connect.Row("socket-lb", 10, "even").kind == connect.Row("tc", 10, "even").kind
    assert connect.Row("xdp", 10, "even").kind != connect.Row("tc", 10, "even").kind


def test_report_compares_what_is_dialled_alike() -> None:
    lines = list(
        connect.report(
            [row("socket-lb", 1, 0.99), row("socket-lb", 10, 0.90), row("socket-lb", 10, 0.96, "last"),
             row("iptables-nft", 10, 0.30), row("iptables-nft", 10, 0.24, "last")]
        )
    )  # fmt: skip
    assert lines[1] == "socket-lb               1  even          0.99  0.98 and 1.00"
    assert lines[-2:] == [
        "socket-lb is 3.0 x iptables-nft at 10 services (even)",
        "socket-lb is 4.0 x iptables-nft at 10 services (last)",
    ]


@pytest.mark.parametrize(
    ("count", "ranks"),
    [
        pytest.param(2, (0, 1), id="too few"),
        pytest.param(5, (0, 4), id="still too few"),
        pytest.param(6, (0, 5), id="the fewest: 2/64 lie outside"),
        pytest.param(9, (1, 7), id="nine"),
        pytest.param(25, (7, 17), id="a run"),
    ],
)
def test_interval_of_the_median(count: int, ranks: tuple[int, int]) -> None:
    """The ranks are those of the tables of the sign test at 0.05 in both tails together."""
    assert connect.median_interval([float(rank) for rank in reversed(range(count))]) == ranks


def test_a_chain_has_every_service_once_in_order() -> None:
    text = restore_text(3)
    chain = [line for line in text.splitlines() if line.startswith("-A KUBE-SERVICES -d")]
    assert [line.split()[3] for line in chain] == [f"{objects.service_address(number)}/32" for number in range(3)]


SOCKETS = """\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
00000000b58913d8 0   0          00000040 0        0        0     2        0        4
00000000a3668bc1 12  0          00000000 0        0        0     2        0        487
00000000a3668bc2 12  7          00000040 0        0        0     2        0        488
00000000a3668bc3 12  8          00000042 0        0        0     2        0        489
"""


def test_listeners_are_counted_once_for_each_network_namespace(tmp_path: Path) -> None:
    for process, namespace in (("1", "net:[1]"), ("2", "net:[1]"), ("3", "net:[2]")):
        (tmp_path / process / "ns").mkdir(parents=True)
        (tmp_path / process / "net").mkdir()
        (tmp_path / process / "ns/net").symlink_to(namespace)
        (tmp_path / process / "net/netlink").write_text(SOCKETS)
    (tmp_path / "4").mkdir()  # ended meanwhile
    (tmp_path / "sys").mkdir()
    assert ruleset_listeners(tmp_path) == 4
