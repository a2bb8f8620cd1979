"""`./dev test [STAGE...]`: everything continuous integration checks, quickest first; all failures are reported."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from devtools.bootstrap import BootstrapError
from devtools.stages import STAGES, Stage, Work

# What pytest, the corpus runner and ansible-test's units print at their end.
COUNT = re.compile(r"\b(\d+) (passed|failed|skipped|xfailed|xpassed|errors?)\b")
TAIL_BYTES = 4096


@dataclass(frozen=True)
class Result:
    """How a stage ended: whether all its commands ended with 0, the tests they counted, and how long it took."""

    stage: str
    passed: bool
    counts: Counter[str]
    seconds: float


def count_line(text: str) -> str:
    """Return the last line that counts tests, or nothing."""
    lines = [line for line in text.splitlines() if COUNT.search(line) and re.search(r"\b(passed|failed)\b", line)]
    return lines[-1] if lines else ""


def counted(text: str) -> Counter[str]:
    """Return the counts of the last line that has any, errors among the failures."""
    counts: Counter[str] = Counter()
    for number, outcome in COUNT.findall(count_line(text)):
        counts["failed" if outcome.startswith("error") else outcome] += int(number)
    return counts


def run_work(work: Work) -> tuple[bool, Counter[str]]:
    """Run one command, passing on its output as it comes; returns whether it ended with 0 and the tests it counted."""
    shown = " ".join(os.path.relpath(word) if word.startswith("/") else word for word in work.command)
    print(f"$ {shown}", flush=True)
    process = subprocess.Popen(
        work.command,
        cwd=work.folder,
        env=os.environ | dict(work.environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    tail = b""
    while chunk := os.read(process.stdout.fileno(), 65536):
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        tail = (tail + chunk)[-TAIL_BYTES:]
    text = tail.decode(errors="replace")
    idle = bool(work.nothing_done) and work.nothing_done in text
    if idle:
        print("dev test: this command checked nothing")
    return process.wait() == 0 and not idle, counted(text)


def run_stage(stage: Stage, position: str) -> Result:
    """Run all commands of a stage, also after one failed. A stage that counts no tests counts as one itself."""
    print(f"\n=== {position} {stage.name}: {stage.what} ===", flush=True)
    begin, passed, counts = time.monotonic(), True, Counter[str]()
    try:
        works = stage.works()
        passed = bool(works)
        if not works:
            print(f"dev test: stage {stage.name} found nothing to run")
        for work in works:
            succeeded, tests = run_work(work)
            passed &= succeeded
            counts += tests
    except (BootstrapError, OSError, subprocess.CalledProcessError) as error:
        print(f"dev test: {error}")
        passed = False
    if not counts:
        counts["passed" if passed else "failed"] = 1
    elif not passed and not counts["failed"]:
        counts["failed"] = 1
    return Result(stage.name, passed, counts, time.monotonic() - begin)


def described(counts: Counter[str]) -> str:
    """Return counts as pytest writes them."""
    order = ("failed", "passed", "skipped", "xfailed", "xpassed")
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order if counts[outcome])


def summary(results: Sequence[Result]) -> str:
    """Return the table of stages and the closing line, in pytest's form."""
    width = max(len(result.stage) for result in results)
    rows = []
    for result in results:
        verdict = "ok" if result.passed else "FAILED"
        rows.append(f"{result.stage:<{width}}  {verdict:<6}  {result.seconds:7.1f} s  {described(result.counts)}")
    total: Counter[str] = sum((result.counts for result in results), Counter[str]())
    seconds = sum(result.seconds for result in results)
    return "\n".join([*rows, f"=== {described(total)} in {seconds:.2f}s ==="])


def main(argv: list[str]) -> int:
    """Run the stages; exit code 0 when all passed."""
    parser = argparse.ArgumentParser(prog="./dev test", description=__doc__)
    names = [stage.name for stage in STAGES]
    parser.add_argument("stage", nargs="*", help=f"only these: {', '.join(names)}")
    wanted = parser.parse_args(argv).stage
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}; the stages are {', '.join(names)}")
    chosen = [stage for stage in STAGES if not wanted or stage.name in wanted]
    results = [run_stage(stage, f"[{number}/{len(chosen)}]") for number, stage in enumerate(chosen, 1)]
    print(f"\n=== summary ===\n{summary(results)}")
    return 0 if all(result.passed for result in results) else 1
