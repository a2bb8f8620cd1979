# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Run a tool of the host, and turn its failure into an error that names it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

# Where administration tools live when a session's PATH leaves them out (Ansible over ssh as a plain user).
_EXTRA_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")
_TIMEOUT_SECONDS = 60


class ToolError(RuntimeError):
    """A tool that failed; `stderr` is what it said."""

    def __init__(self, command: Sequence[str], status: object, stderr: str) -> None:
        super().__init__(f"{' '.join(command)} failed ({status}): {stderr.strip()}")
        self.stderr = stderr


def find(name: str) -> str | None:
    """Return the path of a tool, or None when the host lacks it."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""),) + _EXTRA_PATH))


def run(command: Sequence[str], stdin: str = "") -> str:
    """Return what the command printed. Raises ToolError when it fails or does not end within a minute."""
    try:
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command,
            input=stdin,
            capture_output=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            timeout=_TIMEOUT_SECONDS,
            check=False,
            encoding="utf-8",
            errors="surrogateescape",
        )
    except subprocess.TimeoutExpired:
        raise ToolError(command, f"no end within {_TIMEOUT_SECONDS} s", "") from None
    except OSError as error:
        raise ToolError(command, "not started", str(error)) from None
    if done.returncode != 0:
        raise ToolError(command, f"exit status {done.returncode}", done.stderr)
    return done.stdout
