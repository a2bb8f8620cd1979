"""What a scenario starts in the background ends with it, and nothing else does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from devtools.molecule import end_leftovers

WAIT = ["python3", "-c", "import sys; print('up', flush=True); sys.stdin.read()"]


def started(folder: Path) -> subprocess.Popen[str]:
    """Return a process that waits, as one that was started for the scenario with this folder."""
    environment = {**os.environ, "MOLECULE_EPHEMERAL_DIRECTORY": str(folder)}
    process = subprocess.Popen(
        WAIT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_only_the_processes_of_this_scenario_end(tmp_path: Path) -> None:
    ours, neighbours = started(tmp_path / "a"), started(tmp_path / "ab")
    try:
        assert end_leftovers(tmp_path / "a") == 1
        ours.communicate(timeout=60)
        assert ours.returncode != 0
        assert neighbours.poll() is None
        assert end_leftovers(tmp_path / "c") == 0
    finally:
        for process in (ours, neighbours):
            process.kill()
            process.communicate()
