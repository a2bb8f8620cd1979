"""The command line of the conformance runner."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from devtools.conformance import corpus, population, runner, timescale
from devtools.conformance.corpus import Case
from devtools.conformance.engine_product import EngineProduct
from devtools.conformance.judge import Circumstances
from devtools.conformance.kproxyd import Kproxyd
from devtools.conformance.model_system import ModelSystem
from devtools.conformance.node_cgroup import BpfFs, NodeCgroup
from devtools.conformance.packet_system import PacketSystem, unserved
from devtools.conformance.play import Story, play
from devtools.conformance.product import NoProduct, Product
from devtools.conformance.random_cases import random_case
from devtools.conformance.self_check import without_proxy

_TESTS = Path(__file__).resolve().parents[2] / "tests"
DEFAULT_PATHS = [_TESTS / "conformance", _TESTS / "conformance-more"]
BACKENDS = ("nft", "ebpf", "model")
_PLAYS = 3
MAX_JOINED = 4


def main(argv: Sequence[str]) -> int:
    options = _parse(argv)
    try:
        cases = _cases(options)
    except ValueError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    cases = [case for case in cases if all(word in case.name for word in options.names)]
    if not cases:
        print("conformance: no case has such a name; see the names with --list", file=sys.stderr)
        return 2
    if options.list:
        print(*(case.name for case in cases), sep="\n")
        return 0
    if options.backend != "model" and os.geteuid() != 0:
        print("conformance: real packets need root: network namespaces and nftables", file=sys.stderr)
        return 2
    if options.xdp and (options.backend != "ebpf" or options.engine or options.self_check):
        print("conformance: --xdp needs --backend ebpf, and kproxyd itself", file=sys.stderr)
        return 2
    if options.self_check:
        cases = [without_proxy(case) for case in cases]
    return _report(runner.run(cases, _player(options), options.jobs), len(cases), options)


def _cases(options: argparse.Namespace) -> list[Case]:
    """Return the cases to play. Raises ValueError for files that are none."""
    if options.random is None:
        return corpus.load(options.paths or DEFAULT_PATHS)
    first, _dash, last = options.random.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal()):
        raise ValueError(f"--random {options.random}: give a number, or two as in 100-119")
    raw = [random_case(seed) for seed in range(int(first), int(last or first) + 1)]
    if options.show:
        yaml.safe_dump(
            {"format": 1, "kubernetes": "1.36", "topic": "random", "cases": raw}, sys.stdout, sort_keys=False
        )
    return [corpus.parse_case(case) for case in raw]


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev conformance", description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, default="nft", help="what to test (default: nft)")
    parser.add_argument("-k", dest="names", action="append", default=[], metavar="NAME", help="only cases named so")
    parser.add_argument("-j", dest="jobs", type=int, default=2, help="cases side by side (default: 2; 0: in process)")
    parser.add_argument("-v", dest="verbose", action="store_true", help="a line for every case, with its time")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    parser.add_argument("--self-check", action="store_true", help="no proxy at all: every probe has to pass")
    parser.add_argument(
        "--engine",
        action="store_true",
        help="without the daemon round the engine: no health check ports, relay and metrics, whose cases then fail",
    )
    parser.add_argument(
        "--random",
        metavar="SEEDS",
        help="no files, but random cases, as 7 or 100-119; the service table is the judge",
    )
    parser.add_argument("--show", action="store_true", help="with --random: print the cases")
    parser.add_argument("--restart", action="store_true", help="kill the daemon before each step and start it after")
    parser.add_argument("--xdp", action="store_true", help="with ebpf: generic XDP on every device, pods' included")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="case files or folders of them")
    return parser.parse_args(argv)


def _player(options: argparse.Namespace) -> runner.PlayCase:
    if options.backend == "model" and not options.self_check:
        return _play_model
    settings = {"xdp": "generic", "xdpDevices": ["*"]} if options.xdp else {}
    return partial(_play_packets, options.backend, options.self_check, options.engine, options.restart, settings)


def _play_model(case: Case) -> runner.Played:
    doubles = population.doubles(case)
    story = Story(case, doubles, Circumstances(case.node.addresses))
    return runner.Played(list(play(story, ModelSystem(case))), story.tally)


def _play_packets(
    backend: str, self_check: bool, engine: bool, restart: bool, settings: Mapping[str, Any], case: Case
) -> runner.Played:
    """settings: more of kproxyd's own, for the eBPF backend. A case whose times were not kept is played anew."""
    case = timescale.shorten(case)
    doubles = population.doubles(case)
    kept_free = frozenset() if self_check else unserved(case)
    ebpf = backend == "ebpf" and not self_check
    at = Circumstances(case.node.addresses, unserved=kept_free, needless_masquerade=ebpf)
    for _time in range(_PLAYS):
        with contextlib.ExitStack() as stack:
            node_cgroup, extra = _node_cgroup(stack) if ebpf else (None, {})
            product = _product(backend, self_check, engine, restart, {**extra, **settings})
            system = PacketSystem(case, doubles, product, node_cgroup)
            stack.callback(system.close)
            story = Story(case, doubles, at)
            played = runner.Played(list(play(story, system)), story.tally)
        if not (played.problems and system.held_up):
            break
    return played


def _product(backend: str, self_check: bool, engine: bool, restart: bool, extra: dict[str, Any]) -> Product:
    if self_check:
        return NoProduct()
    return EngineProduct(backend, extra) if engine else Kproxyd(backend, extra, restart)


def _node_cgroup(stack: contextlib.ExitStack) -> tuple[NodeCgroup, dict[str, Any]]:
    """Give the node under test a cgroup and a BPF file system of its own, and tell the product where they are."""
    name = f"kp-conformance-{os.getpid()}"
    bpffs = BpfFs()
    stack.callback(bpffs.close)
    node_cgroup = NodeCgroup(name)
    stack.callback(node_cgroup.close)
    return node_cgroup, {"cgroup": node_cgroup.path, "bpfDirectory": os.path.join(bpffs.path, "kproxy")}


def _report(results: Iterator[runner.Result], total: int, options: argparse.Namespace) -> int:
    """Print one line per failing case and the closing line; progress goes to a terminal only."""
    begin = time.monotonic()
    passed = failed = skipped = 0
    accepted: Counter[str] = Counter()
    for number, result in enumerate(results, 1):
        accepted.update(result.accepted)
        if result.skipped is not None:
            skipped += 1
            _line(f"SKIP {result.name}: {result.skipped}")
        elif result.problems:
            failed += 1
            shown = list(result.problems[:MAX_JOINED])
            if len(result.problems) > MAX_JOINED and not options.verbose:
                shown.append(f"and {len(result.problems) - MAX_JOINED} more")
            _line(f"FAIL {result.name}: {'; '.join(result.problems if options.verbose else shown)}")
        else:
            passed += 1
            if options.verbose:
                _line(f"PASS {result.name} ({result.seconds:.1f} s)")
        if sys.stderr.isatty():
            print(f"\r{number}/{total} cases, {failed} failed ", end="", file=sys.stderr, flush=True)
        elif number % 50 == 0 or number == total:
            print(f"{number}/{total} cases after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    for what, count in accepted.items():
        if count:
            _line(f"accepted: {count} {what}")
    _line(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def _line(text: str) -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(text, flush=True)
