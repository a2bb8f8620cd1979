"""Running the host's commands: quiet on success, the whole story on failure."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterable

from devtools.lab.topology import LabError


def run(command: list[str], *, stdin: str | None = None) -> str:
    """Run a command and return what it printed.

    Raises:
        LabError: it failed; the text has the command and its output.
    """
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        output = (result.stderr + result.stdout).strip()
        raise LabError(f"`{shlex.join(command)}` failed with exit code {result.returncode}: {output}")
    return result.stdout


def succeeds(command: list[str]) -> bool:
    """Tell whether a command ends with exit code 0; its output is dropped."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def ip_batch(namespace: str, lines: Iterable[str]) -> None:
    """Run several `ip` commands in a network namespace, in one process; stops at the first that fails."""
    run(["ip", "-n", namespace, "-batch", "-"], stdin="\n".join(lines) + "\n")
