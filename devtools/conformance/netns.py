"""Network namespaces without a name: they exist while a file descriptor of this process does.

A killed run therefore leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from devtools.waiting import eventually

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _enter(descriptor: int) -> None:
    _check(_libc.setns(descriptor, CLONE_NEWNET), "setns")


class NetworkNamespace:
    """A new, empty network namespace; ``entered`` moves the calling thread into it for a while."""

    def __init__(self) -> None:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.unshare(CLONE_NEWNET), "unshare")
            self.descriptor = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            _enter(home)
        finally:
            os.close(home)

    @property
    def path(self) -> str:
        """A path by which another process can open the namespace."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self.descriptor)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)

    def joiner(self) -> Callable[[], None]:
        """A preexec function that puts a child process into the namespace."""
        descriptor = self.descriptor
        return lambda: _enter(descriptor)

    def run(self, command: Sequence[str], stdin: str | None = None, check: bool = True) -> str:
        """Run a command inside, return what it prints; raises RuntimeError with its words if it fails."""
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, preexec_fn=self.joiner(), check=False
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def ip(self, lines: Sequence[str]) -> None:
        """Run lines of ``ip`` in one process."""
        self.run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")

    def wait_until_up(self, *devices: str) -> None:
        """Wait until the kernel has noticed the carrier of devices; before that it drops what is sent through them."""

        def up() -> bool:
            found = self.run(["ip", "-oneline", "link"])
            return all(re.search(rf" {re.escape(name)}[@:].* state UP ", found) for name in devices)

        eventually(up, f"the carrier of {', '.join(devices)}")

    def sysctl(self, name: str, value: str) -> None:
        """Set a per-namespace sysctl; one that the kernel does not know is left out."""
        with self.entered(), contextlib.suppress(FileNotFoundError):
            # What /proc/sys/net shows follows the namespace of the thread that opens it.
            Path("/proc/sys/net", *name.split(".")).write_text(value, encoding="ascii")

    def close(self) -> None:
        os.close(self.descriptor)
