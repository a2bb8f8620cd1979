"""Random cases: the same from the same seed, and of every kind of answer."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from devtools.conformance import command
from devtools.conformance.corpus import parse_case
from devtools.conformance.random_cases import STEPS, random_case

SEEDS = range(12)


def test_a_seed_gives_one_case() -> None:
    one, again, other = (json.dumps(random_case(seed)) for seed in (3, 3, 4))
    assert one == again != other


def test_they_change_and_have_every_answer() -> None:
    cases = [parse_case(random_case(seed)) for seed in SEEDS]
    assert all(len(case.steps) == STEPS and all(scope.probes for scope in case.scopes) for case in cases)
    verdicts = Counter(probe.expect.verdict for case in cases for probe in case.probes)
    assert set(verdicts) == {"dnat", "reject", "drop", "pass"}
    assert verdicts["dnat"] > len(cases)
    protocols = Counter(probe.to.protocol for case in cases for probe in case.probes)
    assert set(protocols) == {"TCP", "UDP", "SCTP", "ICMP"}


def test_they_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--backend", "model", "--random", "0-3", "-j", "0"]) == 0
    assert capsys.readouterr().out == "4 passed, 0 failed, 0 skipped\n"
    assert command.main(["--backend", "model", "--random", "7", "--show", "-j", "0"]) == 0
    assert "name: random/7" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", ["x", "-3", "3-x", ""])
def test_what_is_no_seed_is_refused(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--backend", "model", f"--random={seeds}"]) == 2
    assert "give a number, or two" in capsys.readouterr().err
