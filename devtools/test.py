"""`./dev test [STAGE...]`: everything continuous integration checks, quickest first; all failures are reported.

Two lanes run side by side: what reads the code, and what sends packets. Lines say which stage they come from.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from devtools.bootstrap import BootstrapError
from devtools.stages import STAGES, Stage, Work

# What pytest, the corpus runner and ansible-test's units print at their end; molecule frames it and cuts it short.
CLOSING = re.compile(r"^=*\s*\d+ [a-z]+(, \d+ [a-z]+)*( in \d+\.?\d*s.*)?$")
COUNT = re.compile(r"\b(\d+) (passed|failed|skipped|xfailed|xpassed|errors?)\b")

# What names a failure in the output of pytest, Ansible, molecule and the compilers; colours and frames go first.
DECORATION = re.compile(r"\x1b\[[0-9;]*m|^[\s│]+")
TELLING = re.compile(
    r"^(FAILED|ERROR) |^E {3}|(fatal|failed): \[|\[ERROR\]|^(ERROR|CRITICAL)\b|\berror: |^dev [a-z]+: "
)
TOLD_LINES, LAST_LINES = 30, 12


@dataclass(frozen=True)
class Result:
    """How a stage ended: whether all its commands ended with 0, the tests they counted, and how long it took.

    failures: for each command that failed, itself and what of its output tells why.
    """

    stage: str
    passed: bool
    counts: Counter[str]
    seconds: float
    failures: tuple[str, ...] = ()


def plain_lines(text: str) -> list[str]:
    """Return the lines that are not empty, without colours and frames."""
    lines = [DECORATION.sub("", DECORATION.sub("", line)).rstrip() for line in text.splitlines()]
    return [line for line in lines if line]


def counted(text: str) -> Counter[str]:
    """Return the sum of all closing lines, since one command may run tests several times; errors are failures."""
    counts: Counter[str] = Counter()
    for line in plain_lines(text):
        for number, outcome in COUNT.findall(line) if CLOSING.match(line) else ():
            counts["failed" if outcome.startswith("error") else outcome] += int(number)
    return counts


def telling(text: str) -> list[str]:
    """Return the lines that name failures, the first of them if they are many; the last lines if there are none."""
    lines = plain_lines(text)
    named = list(dict.fromkeys(line for line in lines if TELLING.search(line)))
    return named[:TOLD_LINES] or lines[-LAST_LINES:]


class Lines:
    """Writes whole lines under a stage's name, so that two stages can share a terminal."""

    _terminal = threading.Lock()

    def __init__(self, stage: str, width: int) -> None:
        self._prefix = f"{stage:<{width}} | "
        self._rest = ""

    def write(self, text: str) -> None:
        """Show the lines that text completes; what follows the last line break waits."""
        *lines, self._rest = (self._rest + text).split("\n")
        with self._terminal:
            for line in lines:
                print(self._prefix + line.rstrip("\r"), flush=True)

    def say(self, line: str) -> None:
        """Show a line."""
        self.write(line + "\n")

    def flush(self) -> None:
        """Show a last line that nothing has ended."""
        if self._rest:
            self.say("")


def shown(work: Work) -> str:
    """Return a command as one would type it from here."""
    return "$ " + " ".join(os.path.relpath(word) if word.startswith("/") else word for word in work.command)


def run_work(work: Work, lines: Lines) -> tuple[bool, str]:
    """Run one command, passing on its output as it comes; returns whether it succeeded and all it printed."""
    lines.say(shown(work))
    process = subprocess.Popen(
        work.command,
        cwd=work.folder,
        env=os.environ | dict(work.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        lines.write(line)
        printed.append(line)
    lines.flush()
    if work.nothing_done and work.nothing_done in "".join(printed):
        printed.append("dev test: this command checked nothing\n")
        lines.write(printed[-1])
        process.wait()
        return False, "".join(printed)
    return process.wait() == 0, "".join(printed)


def run_stage(stage: Stage, lines: Lines) -> Result:
    """Run all commands of a stage, also after one failed. A stage that counts no tests counts as one itself."""
    lines.say(f"=== {stage.what} ===")
    begin, passed, counts, failures = time.monotonic(), True, Counter[str](), list[str]()
    try:
        works = stage.works()
        passed = bool(works)
        if not works:
            lines.say(f"dev test: stage {stage.name} found nothing to run")
        for work in works:
            succeeded, printed = run_work(work, lines)
            passed &= succeeded
            counts += counted(printed)
            if not succeeded:
                failures.append("\n  ".join([shown(work), *telling(printed)]))
    except (BootstrapError, OSError, subprocess.CalledProcessError) as error:
        lines.say(f"dev test: {error}")
        failures.append(f"{error}")
        passed = False
    if not counts:
        counts["passed" if passed else "failed"] = 1
    elif not passed and not counts["failed"]:
        counts["failed"] = 1
    result = Result(stage.name, passed, counts, time.monotonic() - begin, tuple(failures))
    lines.say(f"=== {'ok' if passed else 'FAILED'} after {result.seconds:.0f} s ===")
    return result


def run_lanes(stages: Sequence[Stage], run: Callable[[Stage], Result], side_by_side: bool = True) -> list[Result]:
    """Run each lane's stages one after the other, the lanes side by side; results come in the order of stages."""
    stop = threading.Event()

    def run_lane(lane: str) -> list[Result]:
        return [run(stage) for stage in stages if stage.lane == lane and not stop.is_set()]

    lanes = sorted({stage.lane for stage in stages})
    with ThreadPoolExecutor(max_workers=len(lanes) if side_by_side else 1) as pool:
        try:
            found = {result.stage: result for results in pool.map(run_lane, lanes) for result in results}
        except BaseException:
            # Interrupted: what runs has been told by the terminal; nothing else starts.
            stop.set()
            raise
    return [found[stage.name] for stage in stages]


def described(counts: Counter[str]) -> str:
    """Return counts as pytest writes them."""
    order = ("failed", "passed", "skipped", "xfailed", "xpassed")
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order if counts[outcome])


def summary(results: Sequence[Result], seconds: float) -> str:
    """Return what failed and why, the table of stages, and the closing line in pytest's form.

    The reasons stand at the end, since many a place that runs this keeps only the last lines. seconds: how long all
    took together.
    """
    width = max(len(result.stage) for result in results)
    rows = []
    for result in results:
        rows += [f"{result.stage}: {failure}\n" for failure in result.failures]
    for result in results:
        verdict = "ok" if result.passed else "FAILED"
        rows.append(f"{result.stage:<{width}}  {verdict:<6}  {result.seconds:7.1f} s  {described(result.counts)}")
    total: Counter[str] = sum((result.counts for result in results), Counter[str]())
    return "\n".join([*rows, f"=== {described(total)} in {seconds:.2f}s ==="])


def main(argv: list[str]) -> int:
    """Run the stages; exit code 0 when all passed."""
    parser = argparse.ArgumentParser(prog="./dev test", description=__doc__)
    names = [stage.name for stage in STAGES]
    parser.add_argument("stage", nargs="*", help=f"only these: {', '.join(names)}")
    parser.add_argument("--one-at-a-time", action="store_true", help="run no two stages side by side")
    arguments = parser.parse_args(argv)
    wanted = arguments.stage
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}; the stages are {', '.join(names)}")
    chosen = [stage for stage in STAGES if not wanted or stage.name in wanted]
    width = max(len(stage.name) for stage in chosen)
    begin = time.monotonic()
    results = run_lanes(
        chosen, lambda stage: run_stage(stage, Lines(stage.name, width)), side_by_side=not arguments.one_at_a_time
    )
    print(f"\n=== summary ===\n{summary(results, time.monotonic() - begin)}")
    return 0 if all(result.passed for result in results) else 1
