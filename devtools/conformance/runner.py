"""Run cases side by side, each in a process of its own, and report."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from devtools.conformance.corpus import Case

CASE_SECONDS = 180.0
"""A case that takes longer is stuck."""


@dataclass(frozen=True)
class Played:
    """How a case went: what is wrong, and what was accepted although it is not to the letter."""

    problems: Sequence[str]
    accepted: Mapping[str, int]


PlayCase = Callable[[Case], Played]


class Skipped(Exception):
    """The kernel here cannot do what the case needs; the message says what."""


@dataclass(frozen=True)
class Result:
    name: str
    problems: tuple[str, ...] = ()
    skipped: str | None = None
    seconds: float = 0.0
    accepted: Mapping[str, int] = field(default_factory=dict)


def _run_one(play: PlayCase, case: Case) -> Result:
    begin = time.monotonic()
    try:
        played = play(case)
    except Skipped as reason:
        return Result(case.name, skipped=str(reason), seconds=time.monotonic() - begin)
    except Exception as error:
        # A crash is a failing case, not the end of the run; its last frame says where to look.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        played = Played([f"{type(error).__name__} at {where}: {' '.join(str(error).split())}"], {})
    seconds = time.monotonic() - begin
    return Result(case.name, tuple(played.problems), seconds=seconds, accepted=dict(played.accepted))


def _child(play: PlayCase, case: Case, pipe: Connection) -> None:
    pipe.send(_run_one(play, case))
    pipe.close()


def run(cases: Sequence[Case], play: PlayCase, jobs: int) -> Iterator[Result]:
    """Yield results as they come."""
    if jobs == 0:
        for case in cases:
            yield _run_one(play, case)
        return
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(cases))
    running: dict[Connection, tuple[BaseProcess, Case, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_child, args=(play, case, theirs))
                process.start()
                theirs.close()
                running[ours] = (process, case, time.monotonic())
            ready = wait(list(running), timeout=1.0)
            late = [pipe for pipe, (_, _, begin) in running.items() if time.monotonic() - begin > CASE_SECONDS]
            for pipe in [pipe for pipe in running if pipe in ready or pipe in late]:
                process, case, begin = running.pop(pipe)
                yield _collect(pipe, process, case, begin, pipe in ready)
    finally:
        for process, _, _ in running.values():
            process.kill()


def _collect(pipe: Connection, process: BaseProcess, case: Case, begin: float, ready: bool) -> Result:
    try:
        if ready:
            result: Result = pipe.recv()
            return result
        process.kill()
        return Result(case.name, (f"no result after {CASE_SECONDS:.0f} s",), seconds=time.monotonic() - begin)
    except EOFError:
        return Result(case.name, ("the process that ran the case died",), seconds=time.monotonic() - begin)
    finally:
        process.join(10)
        pipe.close()
