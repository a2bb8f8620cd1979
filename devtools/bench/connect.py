"""How fast a client connects to Services whose endpoints are behind the same node, as a ratio to connecting directly.

One client on one processor makes short TCP connections, 32 at once, each to another Service: they are spread evenly
over all of them (`even`), or all to the one that was loaded last (`last`): one Service of many, which lies at the end
of a chain where a packet walks one. The client is a pod of the node; for XDP, which is for outsiders alone, it is one.

Rows take turns in many short slices. A slice counts by its ratio to the slices of direct connections to the same
endpoints before and after it: what else the machine does hits neighbours alike. A row is the median of its ratios, with
the interval that holds the true median in 95 of 100 runs. Absolute rates mean nothing and are not printed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import DISABLED
from devtools.bench.world import OUTSIDER, POD, Dialler, Kind, World

SERVICES = (1, 10000, 100000)
SLICES, CONNECTIONS = 25, 640
CONFIDENCE = 0.95
EVEN, LAST = "even", "last"
_SOURCE = pathlib.Path(__file__).with_name("connections.c")


class Path(NamedTuple):
    """One way from an address dialled to an endpoint.

    sockets: the client is in the cgroup whose sockets are translated. last: the last Service is dialled alone, too.
    most_services: what is loaded at most.
    """

    mode: str
    sockets: bool = False
    client: str = POD
    xdp: str = DISABLED
    last: bool = False
    most_services: int = 1000000


#: Rules of the iptables modes are not loaded beyond 10,000 Services: it would take minutes, and say no more.
PATHS = {
    "socket-lb": Path("ebpf", sockets=True, last=True),
    "tc": Path("ebpf"),
    "xdp": Path("ebpf", client=OUTSIDER, xdp="generic"),
    "nft": Path("nftables"),
    "iptables-legacy": Path("iptables-legacy-restore", last=True, most_services=10000),
    "iptables-nft": Path("iptables-nft-restore", last=True, most_services=10000),
}


class Row(NamedTuple):
    """What is measured."""

    path: str
    services: int
    dialled: str

    @property
    def kind(self) -> Kind:
        """Return the world that it is measured in."""
        path = PATHS[self.path]
        return Kind(path.mode, self.services, path.client, path.xdp)

    @property
    def numbers(self) -> range:
        """Return the numbers of the Services that are dialled."""
        return range(self.services - 1 if self.dialled == LAST else 0, self.services)


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="./dev bench connect", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--services", type=int, nargs="+", default=SERVICES, metavar="N")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--slices", type=int, default=SLICES)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the rows there, too")
    options = parser.parse_args(argv)
    if options.slices < 2:
        parser.error("--slices: a spread takes two at least")
    found = measure(rows(options.services, options.paths), options.slices)
    print("".join(f"{line}\n" for line in report(found)), end="")
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": found}, indent=2) + "\n")
    return 0


def rows(services: Sequence[int], paths: Sequence[str]) -> list[Row]:
    """Return what is measured, for each number of Services."""
    return [
        Row(path, number, dialled)
        for number in services
        for path in paths
        if number <= PATHS[path].most_services
        for dialled in ((EVEN, LAST) if PATHS[path].last and number > 1 else (EVEN,))
    ]


def measure(wanted: Sequence[Row], slices: int) -> list[dict[str, Any]]:
    """Return the ratios of all rows."""
    with contextlib.ExitStack() as stack:
        pairs, worlds = _diallers(stack, wanted)
        ratios: list[list[float]] = [[] for _ in wanted]
        for number in range(slices):
            if number % 5 == 0:
                _say(f"slice {number + 1} of {slices}")
            for (direct, dialler), found in zip(pairs, ratios, strict=True):
                before, taken, after = (each.dial(CONNECTIONS) for each in (direct, dialler, direct))
                found.append((before + after) / 2 / taken)
            for world in worlds:
                world.forget_flows()
        for world in worlds:
            world.check()
        _say("take everything down")
    return [_figures(row, found) for row, found in zip(wanted, ratios, strict=True)]


def _diallers(stack: contextlib.ExitStack, wanted: Sequence[Row]) -> tuple[list[tuple[Dialler, Dialler]], list[World]]:
    """Return for every row who dials directly and who by its path, and all worlds."""
    program = stack.enter_context(compiled())
    direct = stack.enter_context(World(program, Kind("direct", 0)))
    worlds: dict[Kind, World] = {}
    directly: dict[range, Dialler] = {}
    pairs = []
    for row in wanted:
        if row.kind not in worlds:
            began = time.monotonic()
            worlds[row.kind] = stack.enter_context(World(program, row.kind))
            _say(f"{row.services} services for {row.path} loaded in {time.monotonic() - began:.1f} s")
        if row.numbers not in directly:
            directly[row.numbers] = stack.enter_context(direct.dialler(row.numbers))
        dialler = stack.enter_context(worlds[row.kind].dialler(row.numbers, PATHS[row.path].sockets))
        dialler.dial(CONNECTIONS)
        pairs.append((directly[row.numbers], dialler))
    return pairs, [direct, *worlds.values()]


def _figures(row: Row, ratios: Sequence[float]) -> dict[str, Any]:
    low, high = median_interval(ratios)
    return {
        "path": row.path,
        "services": row.services,
        "dialled": row.dialled,
        "ratio_to_direct": round(statistics.median(ratios), 3),
        "interval": [round(low, 3), round(high, 3)],
    }


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return between which values the median of the population lies, with 95 % confidence, whatever its distribution.

    A value is below that median as often as a coin shows heads, so the number of values below it is binomial
    (Conover, Practical Nonparametric Statistics, 3.2). Fewer than six values are too few: their extremes are returned.
    """
    ordered, count = sorted(values), len(values)
    outside = itertools.accumulate(2 * math.comb(count, below) / 2**count for below in range(count))
    outermost = max(sum(share <= 1 - CONFIDENCE for share in outside) - 1, 0)
    return ordered[outermost], ordered[-1 - outermost]


def report(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield lines to read: the rows, then how many times as fast as the iptables modes socket-lb is, dialled alike."""
    yield f"{'path':<17}{'services':>8}  dialled  of direct  95 % between"
    for row in found:
        low, high = row["interval"]
        yield (
            f"{row['path']:<17}{row['services']:>8}  {row['dialled']:<7}  {row['ratio_to_direct']:>9.2f}"
            f"  {low:.2f} and {high:.2f}"
        )
    sockets = {_dialled(row): row["ratio_to_direct"] for row in found if row["path"] == "socket-lb"}
    for row in found:
        if row["path"] != "socket-lb" and PATHS[row["path"]].last and _dialled(row) in sockets:
            times = sockets[_dialled(row)] / row["ratio_to_direct"]
            yield f"socket-lb is {times:.1f} x {row['path']} at {row['services']} services ({row['dialled']})"


def _dialled(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["services"], row["dialled"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def compiled() -> Iterator[str]:
    """Compile the load program; an interpreter would hide the differences."""
    with tempfile.TemporaryDirectory(prefix="kp-bench-") as folder:
        target = os.path.join(folder, "connections")
        subprocess.run(["clang", "-O2", "-Wall", "-Wextra", str(_SOURCE), "-o", target], check=True)
        yield target
