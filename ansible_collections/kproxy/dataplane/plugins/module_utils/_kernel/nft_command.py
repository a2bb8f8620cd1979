# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Run the nft command: structure in, readable listings of our own table out.

nft is only ever asked about our own family and table. Listing more makes some versions die by SIGSEGV on sets that a
newer nft of somebody else created (kubernetes/kubernetes#136786).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import IO

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_protocol import FAMILY_WORD

Version = tuple[int, ...]

#: Oldest nft that loads what we write; also kube-proxy's minimum.
MINIMUM_VERSION: Version = (1, 0, 1)
#: It takes milliseconds. kproxyd waits for it in its main loop, which a watchdog ends after 30 s without a reason.
TIMEOUT_SECONDS = 15.0
#: Of what nft complains about, this much is kept; it repeats the offending line of the input.
_STDERR_MAX_CHARS = 4000
_ENOENT_TEXT = "No such file or directory"

_VERSION_PATTERN = re.compile(r"\bv(\d+(?:\.\d+)*)")
_FORBIDDEN = re.compile(r"^\s*(?:flush\s+ruleset|list\b|monitor\b|reset\b|export\b)", re.MULTILINE)


class NftError(KernelError):
    """nft ended without success; nothing of its input is in force.

    Attributes:
        command: what was run.
        version: "1.0.6", or "unknown".
        returncode: negative for a signal; None if it did not end in time or could not be started.
        stderr: bounded.
    """

    def __init__(self, command: Sequence[str], version: str, returncode: int | None, stderr: str, reason: str) -> None:
        self.command = tuple(command)
        self.version = version
        self.returncode = returncode
        self.stderr = stderr
        text = f"`{' '.join(command)}` (nft {version}) {reason}"
        super().__init__(f"{text}: {stderr}" if stderr else text)


def parse_version(output: str) -> Version:
    """Return the version in `nft --version` output ("nftables v1.0.6 (Lester Gooch #5)"); () if there is none."""
    match = _VERSION_PATTERN.search(output)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


class NftCommand:
    """The nft program of this node."""

    def __init__(self, path: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.path = path or shutil.which("nft", path=_search_path()) or "nft"
        self.timeout_seconds = timeout_seconds
        self._version: Version | None = None

    def version(self) -> Version:
        """Return the program's version, asked once; () if it does not say.

        Raises:
            NftError: nft is missing or does not run.
        """
        if self._version is None:
            self._version = parse_version(self._run(["--version"], None))
        return self._version

    @property
    def version_text(self) -> str:
        """The version for messages; never runs anything."""
        return ".".join(map(str, self._version)) if self._version else "unknown"

    def load(self, structure: str, check: bool = False) -> None:
        """Load nft text as one transaction (`nft -f -`), or only have it checked.

        Args:
            structure: statements about our own tables.
            check: change nothing (`nft -c`).

        Raises:
            NftError: refused, died, overdue or too old; nothing of the text is in force.
            ValueError: the text asks for more than our own tables.
        """
        forbidden = _FORBIDDEN.search(structure)
        if forbidden:
            raise ValueError(f"nft is never asked to {' '.join(forbidden.group().split())}")
        self._require_minimum()
        self._run((["-c"] if check else []) + ["-f", "-"], structure)

    def list_table(self, family: int, table: str, terse: bool = True, json: bool = False) -> str | None:
        """Return one table of ours as nft prints it; None if it does not exist.

        Args:
            family: 4 or 6.
            table: name.
            terse: leave out the elements of sets.
            json: in libnftables' JSON.

        Raises:
            NftError: nft is missing, may not read the table, died or is overdue.
        """
        arguments = (["-t"] if terse else []) + (["-j"] if json else []) + ["list", "table", FAMILY_WORD[family], table]
        try:
            return self._run(arguments, None)
        except NftError as error:
            if error.returncode == 1 and _ENOENT_TEXT in error.stderr:
                return None
            raise

    def _require_minimum(self) -> None:
        """Refuse a program that is too old; one that does not say its version gets its chance."""
        if self.version() and self.version() < MINIMUM_VERSION:
            minimum = ".".join(map(str, MINIMUM_VERSION))
            reason = f"is older than {minimum}; install a newer nftables package"
            raise NftError([self.path, "--version"], self.version_text, 0, "", reason)

    def _run(self, arguments: list[str], text: str | None) -> str:
        command = [self.path, *arguments]
        # Not pipes, which a child that writes much would block on, and no files: a disk that is full, as that of a node
        # may be when it boots, must not keep our tables away.
        with _memory("nft-stdout") as stdout, _memory("nft-stderr") as stderr:
            try:
                done = subprocess.run(  # pylint: disable=ansible-bad-function
                    command,
                    input=(text or "").encode(),
                    stdout=stdout,
                    stderr=stderr,
                    timeout=self.timeout_seconds,
                    check=False,
                    env={**os.environ, "LC_ALL": "C"},
                )
            except FileNotFoundError as error:
                raise NftError(
                    command, "missing", None, "", "cannot run: nft is not installed; install package nftables"
                ) from error
            except OSError as error:
                raise NftError(command, self.version_text, None, "", f"cannot be started: {error}") from error
            except subprocess.TimeoutExpired as error:
                reason = f"did not end within {self.timeout_seconds:g} s and was killed"
                raise NftError(command, self.version_text, None, _tail(stderr), reason) from error
            if done.returncode:
                if arguments != ["--version"]:
                    self._learn_version()
                raise NftError(command, self.version_text, done.returncode, _tail(stderr), _ending(done.returncode))
            stdout.seek(0)
            return stdout.read().decode("utf-8", "replace")

    def _learn_version(self) -> None:
        """Make the message about a failure name the version, if nft still says it."""
        try:
            self.version()
        except NftError:
            self._version = None


def _memory(name: str) -> IO[bytes]:
    """Return a file that is on no disk."""
    return os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "w+b")


def _ending(returncode: int) -> str:
    if returncode > 0:
        return f"failed with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return (
        f"was killed by {name}; a table that another program made with a newer nft may be the cause "
        "(the kernel keeps what was last committed; update nft, or find the table's owner)"
    )


def _tail(stream: IO[bytes]) -> str:
    stream.seek(0)
    raw = stream.read(4 * _STDERR_MAX_CHARS)
    words = raw.decode("utf-8", "replace").strip()
    return words if len(words) <= _STDERR_MAX_CHARS else words[:_STDERR_MAX_CHARS] + " [...]"


def _search_path() -> str:
    """Return PATH with the sbin folders that an unprivileged or stripped environment lacks."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
