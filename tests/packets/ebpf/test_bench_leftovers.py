"""A benchmark that was killed leaves a cgroup behind; the next one removes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import mount_point
from devtools.bench import ebpf_backend


def test_a_killed_run_s_cgroup_is_removed_and_what_runs_in_it_ended() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = Path(mount_point(), f"kp-bench-{ended.pid}-0")
    living = Path(mount_point(), f"kp-bench-{os.getpid()}-0")
    for directory in (left, living):
        directory.mkdir()
    try:
        with subprocess.Popen(["sleep", "600"]) as stray:
            (left / "cgroup.procs").write_text(str(stray.pid))
            ebpf_backend._remove_leftovers(Path(mount_point()))
            assert stray.wait(60) < 0
        assert not left.exists()
        assert living.exists()
    finally:
        living.rmdir()
