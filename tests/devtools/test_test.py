"""`./dev test`: counting what stages print, and a verdict that no stage can hide from."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import pytest

from devtools.stages import CODE, PACKETS, STAGES, Stage, Work
from devtools.test import Lines, Result, counted, run_lanes, run_stage, summary

CLOSING_LINES = [
    # name              printed                                              counts
    ("pytest",          "=== 1 failed, 3 passed, 2 skipped in 0.1s ===",     {"failed": 1, "passed": 3, "skipped": 2}),
    ("pytest, errors",  "=== 3 passed, 1 error in 0.1s ===",                 {"passed": 3, "failed": 1}),
    ("corpus",          "12 passed, 0 failed, 1 skipped",                    {"passed": 12, "skipped": 1}),
    ("several runs",    "== 1 failed, 1 passed in 1s ==\n5 passed in 2s\nx", {"failed": 1, "passed": 6}),
    ("framed",          "  \x1b[2m│\x1b[0m ===== \x1b[32m413 passed\x1b[0m in 32.34s\n │  ==", {"passed": 413}),
    ("with warnings",   "=== 3 passed, 1 warning in 65.10s (0:01:05) ===",      {"passed": 3}),
    ("a sentence",      "2 passed on the road, 3 failed to",                    {}),
    ("none",            "all checks passed!\nskipped 3 files",               {}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "counts"), [row[1:] for row in CLOSING_LINES], ids=[row[0] for row in CLOSING_LINES])
def test_counted(text: str, counts: dict[str, int]) -> None:
    assert +counted(text) == Counter(counts)


LINES = Lines("name", 4)


def script(text: str) -> Work:
    return Work([sys.executable, "-c", text])


RUNS = [
    # name                   commands                                       passed counts
    ("counts",               ["print('2 passed in 1s')"],                   True,  {"passed": 2}),
    ("does not count",       ["pass"],                                      True,  {"passed": 1}),
    ("fails, not counting",  ["raise SystemExit(1)"],                       False, {"failed": 1}),
    ("fails, all passed",    ["print('2 passed'); raise SystemExit(1)"],    False, {"passed": 2, "failed": 1}),
    ("first of two fails",   ["raise SystemExit(1)", "print('2 passed')"],  False, {"passed": 2, "failed": 1}),
    ("nothing to run",       [],                                            False, {"failed": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("commands", "passed", "counts"), [row[1:] for row in RUNS], ids=[row[0] for row in RUNS])
def test_run_stage(commands: list[str], passed: bool, counts: dict[str, int]) -> None:
    result = run_stage(Stage("name", "what", lambda: [script(text) for text in commands]), LINES)
    assert (result.passed, +result.counts) == (passed, Counter(counts))


def test_a_missing_program_fails_its_stage_alone() -> None:
    result = run_stage(Stage("name", "what", lambda: [Work(["/nonexistent/program"])]), LINES)
    assert not result.passed


def test_a_command_that_checked_nothing_fails() -> None:
    idle = Work([sys.executable, "-c", "print('All targets skipped')"], nothing_done="All targets skipped")
    assert not run_stage(Stage("name", "what", lambda: [idle]), LINES).passed


TOLD = [
    # name             printed                                                     what tells why
    ("pytest",         "a\nE   assert 1\nFAILED t::test\nb",                        ["E   assert 1", "FAILED t::test"]),
    ("framed colours", "  \x1b[2m│\x1b[0m \x1b[31mfatal: [cp-1]: FAILED!\x1b[0m\n", ["fatal: [cp-1]: FAILED!"]),
    ("nothing named",  "one\n\ntwo\n",                                             ["one", "two"]),
    ("said twice",     "[ERROR]: Task failed\n[ERROR]: Task failed\n",              ["[ERROR]: Task failed"]),
]  # fmt: skip


@pytest.mark.parametrize(("printed", "told"), [row[1:] for row in TOLD], ids=[row[0] for row in TOLD])
def test_a_failed_command_tells_why(printed: str, told: list[str]) -> None:
    work = script(f"print({printed!r}); raise SystemExit(1)")
    (failure,) = run_stage(Stage("name", "what", lambda: [work]), LINES).failures
    assert [line.strip() for line in failure.splitlines()[1:]][-len(told) :] == told


def test_summary_closes_like_pytest() -> None:
    results = [
        Result("unit", True, Counter(passed=10, skipped=1), 1.5),
        Result("molecule", False, Counter(failed=1, passed=2), 60.0, ("$ molecule\n  fatal: [cp-1]",)),
    ]
    assert summary(results, 60.2).splitlines() == [
        "molecule: $ molecule",
        "  fatal: [cp-1]",
        "",
        "unit      ok          1.5 s  10 passed, 1 skipped",
        "molecule  FAILED     60.0 s  1 failed, 2 passed",
        "=== 1 failed, 12 passed, 1 skipped in 60.20s ===",
    ]


def test_lines_of_two_stages_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Lines("a", 3), Lines("bcd", 3)
    first.write("one ")
    second.write("two\r\nthree")
    first.write("1\n")
    second.flush()
    first.flush()
    assert capsys.readouterr().out == "bcd | two\na   | one 1\nbcd | three\n"


def test_lanes_run_side_by_side_and_report_in_order() -> None:
    met = threading.Barrier(2, timeout=60)

    def run(stage: Stage) -> Result:
        if stage.name != "last":
            met.wait()  # passes only if the other lane runs meanwhile
        return Result(stage.name, True, Counter(passed=1), 0.0)

    stages = [Stage("a", "", list, CODE), Stage("b", "", list, PACKETS), Stage("last", "", list, CODE)]
    assert [result.stage for result in run_lanes(stages, run)] == ["a", "b", "last"]


def test_stages_have_names_of_their_own() -> None:
    assert len({stage.name for stage in STAGES}) == len(STAGES)
