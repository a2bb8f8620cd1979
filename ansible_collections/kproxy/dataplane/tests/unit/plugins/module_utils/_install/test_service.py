# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Waiting for kproxyd: systemd says when it is ready, and what it said last when it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown
from ansible_collections.kproxy.dataplane.plugins.module_utils._install import service
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import Service, ServiceError

IN_STEP = {"inStep": True, "startedAt": 100.0}
WAITING = {
    "inStep": False,
    "startedAt": 100.0,
    "waitingFor": ["Node"],
    "sources": [{"kind": "Node", "detail": "no API server answers"}],
}
FAILED = {"inStep": False, "startedAt": 100.0, "lastError": "nft is not installed"}


class Node:
    """What the daemon answers, one answer after the other and the last for ever; and what was run."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any] | None], start_code: int = 0
    ) -> None:
        self._answers: Iterator[dict[str, Any] | None] = iter(answers)
        self._last = answers[-1]
        self._start_code = start_code
        self.ran: list[list[str]] = []
        monkeypatch.setattr(service, "ask", self._ask)
        monkeypatch.setattr(service, "_PAUSE_SECONDS", 0.001)

    def _ask(self, _path: str, _command: str) -> dict[str, Any]:
        answer = next(self._answers, self._last)
        if answer is None:
            raise DaemonDown("nothing listens")
        return answer

    def run(self, command: list[str]) -> tuple[int, str, str]:
        self.ran.append(command)
        return (0, "the last line", "") if command[0] == "journalctl" else (self._start_code, "", "")


def starts(node: Node) -> list[list[str]]:
    return [command for command in node.ran if command[0] == "timeout"]


@pytest.mark.parametrize(
    ("answer", "written", "since"),
    [
        pytest.param(IN_STEP, 99.0, True, id="started after the files were written"),
        pytest.param(IN_STEP, 101.0, False, id="a run ended between writing and starting anew"),
        pytest.param(IN_STEP, 0.0, True, id="no files"),
        pytest.param(WAITING, 101.0, False, id="not in step either"),
        pytest.param(None, 101.0, True, id="no answer"),
    ],
)
def test_a_kproxyd_older_than_its_files(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any] | None, written: float, since: bool
) -> None:
    assert Service(Node(monkeypatch, [answer]).run).runs_since(written) is since


def test_systemd_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [None, IN_STEP])
    assert Service(node.run).wait_in_step(60, former=50.0) == IN_STEP
    ((program, seconds, *command),) = starts(node)
    assert (program, command) == ("timeout", ["systemctl", "start", "kproxyd.service"])
    assert 0 < float(seconds) <= 60


def test_nothing_is_waited_for_when_it_is_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [IN_STEP])
    assert Service(node.run).wait_in_step(60, former=50.0) == IN_STEP
    assert node.ran == []


@pytest.mark.parametrize("before", [50.0, 7300.0], ids=["by the right clock", "by a clock that was set back since"])
def test_the_one_before_does_not_count(monkeypatch: pytest.MonkeyPatch, before: float) -> None:
    old = {"inStep": True, "startedAt": before}
    node = Node(monkeypatch, [old, old, IN_STEP])
    former = Service(node.run).started()
    assert Service(node.run).wait_in_step(60, former) == IN_STEP
    assert len(starts(node)) == 1


def test_step_that_was_lost_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [WAITING, WAITING, IN_STEP])
    assert Service(node.run).wait_in_step(60, former=50.0) == IN_STEP
    assert node.ran == []


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([WAITING], "it waits for the first list of Node; no API server answers"),
        ([FAILED], "nft is not installed"),
        ([None], "its log ends with:\nthe last line"),
    ],
)
def test_why_it_is_not_in_step(
    monkeypatch: pytest.MonkeyPatch, answers: list[dict[str, Any] | None], words: str
) -> None:
    node = Node(monkeypatch, answers, start_code=1)
    with pytest.raises(ServiceError, match="not in step after 0.02 s: ") as raised:
        Service(node.run).wait_in_step(0.02, former=50.0)
    assert words in str(raised.value)
