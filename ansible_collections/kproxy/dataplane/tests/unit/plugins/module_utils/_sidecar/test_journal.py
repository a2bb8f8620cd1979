# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.journal import Entry, Journal

LIMIT = 4096


def entry(generation: int, action: str = "sync") -> Entry:
    return Entry(1_800_000_000.5 + generation, action, generation, 0.00123456, elements=2, changed=1, causes=("x",))


def test_entries_come_back_in_order_and_without_empty_fields(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "made", LIMIT)
    for generation in (1, 2, 3):
        journal.append(entry(generation))
    assert [one["generation"] for one in journal.read(2)] == [2, 3]
    assert journal.read(1)[0] == {
        "time": 1_800_000_003.5,
        "action": "sync",
        "generation": 3,
        "seconds": 0.001235,
        "elements": 2,
        "changed": 1,
        "causes": ["x"],
    }


def test_it_stays_below_its_limit_and_keeps_the_latest(tmp_path: Path) -> None:
    journal = Journal(tmp_path, LIMIT)
    for generation in range(500):
        journal.append(entry(generation))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= LIMIT + 256
    kept = [one["generation"] for one in journal.read(10_000)]
    assert kept == list(range(kept[0], 500))
    assert len(kept) >= 10


def test_a_damaged_line_costs_only_itself(tmp_path: Path) -> None:
    journal = Journal(tmp_path, LIMIT)
    journal.append(entry(1))
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"time": 18\n\xff\xfe\n[]\n')
    journal.append(entry(2))
    assert [one["generation"] for one in journal.read(10)] == [1, 2]


@pytest.mark.parametrize("torn", [b'{"time":18', b'{"time":1800000001.5,"action":"sync"}', bytes(60)])
def test_what_follows_a_line_that_was_torn_is_kept(tmp_path: Path, torn: bytes) -> None:
    """Power went, or the disk was full, while a line was being written."""
    journal = Journal(tmp_path, LIMIT)
    journal.append(entry(1))
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(torn)
    for generation in (2, 3):
        Journal(tmp_path, LIMIT).append(entry(generation))
    assert [one["generation"] for one in journal.read(10) if "generation" in one] == [1, 2, 3]


def test_a_journal_full_of_failures_still_says_which_generation_is_in_force(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 1 << 20)
    for _failure in range(1200):
        journal.append(entry(7, "failed"))
    assert journal.last_commit() == (7, 0.0)


def test_the_last_commit_survives_a_restart_and_failures_do_not_count(tmp_path: Path) -> None:
    assert Journal(tmp_path, LIMIT).last_commit() == (0, 0.0)
    journal = Journal(tmp_path, LIMIT)
    journal.append(entry(7))
    journal.append(entry(7, "failed")._replace(time=1_900_000_000.0))
    assert Journal(tmp_path, LIMIT).last_commit() == (7, 1_800_000_007.5)


def test_a_journal_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file", LIMIT)
    with caplog.at_level(logging.WARNING):
        journal.append(entry(1))
        journal.append(entry(2))
    assert len(caplog.records) == 1
    assert journal.read(10) == []
