"""Saying what the demo does while it does it, and how long each step took."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class DemoError(Exception):
    """A step did not hold; the text says what was seen and what to look at."""


class Progress:
    """Steps with their durations, for the summary at the end."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float, str]] = []
        self._started = time.monotonic()

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """Announce a step; what is put into the list it yields is told behind it."""
        print(f"==> {title}", flush=True)
        started = time.monotonic()
        findings: list[str] = []
        yield findings
        seconds = time.monotonic() - started
        for line in findings:
            print(f"    {line}", flush=True)
        self.steps.append((title, seconds, findings[-1] if findings else ""))

    def summary(self) -> str:
        """Return the table of steps."""
        width = max(len(title) for title, _seconds, _finding in self.steps)
        lines = [f"{title:<{width}}  {seconds:7.1f} s  {finding}" for title, seconds, finding in self.steps]
        lines.append(f"{'whole demo':<{width}}  {time.monotonic() - self._started:7.1f} s")
        return "\n".join(lines)


def run_logged(command: Sequence[str], log: Path, env: dict[str, str], interesting: Sequence[str]) -> str:
    """Run a command with its output in a log, echoing lines that begin with one of the interesting words.

    Raises:
        DemoError: it failed; the end of its output is in the message.
    """
    lines: list[str] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            lines.append(line)
            if line.startswith(tuple(interesting)):
                print("    " + line.rstrip(" *\n"), flush=True)
    if process.wait():
        tail = "".join(lines[-40:])
        raise DemoError(f"{' '.join(command)} ended with {process.returncode}; its output is in {log}\n{tail}")
    return "".join(lines)


def say(text: str) -> None:
    """Print a paragraph."""
    print(text, flush=True)
    sys.stdout.flush()
