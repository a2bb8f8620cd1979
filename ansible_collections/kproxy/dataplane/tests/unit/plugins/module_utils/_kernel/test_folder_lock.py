# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Who waits for a lock in vain says so, and whom for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.folder_lock import locked

HOLD = (
    "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(flush=True); input()"
)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_holder_that_is_stopped_is_named(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    holder.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
    with pytest.raises(TimeoutError) as refused, locked(str(tmp_path), 0.1):
        raise AssertionError("two have the lock")
    assert f"{tmp_path}: process {holder.pid} (python" in str(refused.value)
    assert "), which is stopped, holds its lock for 0.1 s already" in str(refused.value)


def test_a_lock_ends_with_its_holder(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    with pytest.raises(TimeoutError, match=rf"process {holder.pid} \(python[^)]*\) holds"), locked(str(tmp_path), 0.0):
        raise AssertionError("two have the lock")
    holder.kill()
    for _time in range(2):
        with locked(str(tmp_path)):
            assert holder.wait() == -signal.SIGKILL
