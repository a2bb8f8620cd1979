"""The nft command: what is run, and what a failure says. Stand-ins for nft are small scripts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import (
    MINIMUM_VERSION,
    NftCommand,
    NftError,
    Version,
    parse_version,
)

VERSIONS: list[tuple[str, Version]] = [
    ("nftables v1.0.6 (Lester Gooch #5)\n", (1, 0, 6)),
    ("nftables v1.1.3 (Commodore Bullmoose #4)", (1, 1, 3)),
    ("nftables v0.9.8 (E.D.S.)", (0, 9, 8)),
    ("nftables v1.0 (x)", (1, 0)),
    ("something else", ()),
    ("", ()),
]


@pytest.mark.parametrize(("output", "expected"), VERSIONS)
def test_parse_version(output: str, expected: Version) -> None:
    assert parse_version(output) == expected
    assert (expected >= MINIMUM_VERSION) == (expected >= (1, 0, 1))


def stand_in(folder: Path, body: str, version: str = "nftables v1.0.6 (x)") -> str:
    """Write a stand-in for nft that knows its version, writes down its arguments and then does what body says."""
    path = folder / "nft"
    path.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "' + version + '"; exit 0; fi\n'
        f'echo "$*" >> {folder}/arguments\n'
        f"cat > {folder}/input\n"
        f"{body}\n"
    )
    path.chmod(0o755)
    return str(path)


def test_structure_goes_in_by_standard_input(tmp_path: Path) -> None:
    command = NftCommand(stand_in(tmp_path, "exit 0"))
    command.load("add table ip kproxy\n")
    command.load("add table ip kproxy\n", check=True)
    assert (tmp_path / "input").read_text() == "add table ip kproxy\n"
    assert (tmp_path / "arguments").read_text() == "-f -\n-c -f -\n"


def test_no_disk_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a node may be full when it boots, and then its tables are needed no less."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "full"))
    NftCommand(stand_in(tmp_path, "exit 0")).load("add table ip kproxy\n")
    assert (tmp_path / "input").read_text() == "add table ip kproxy\n"


def test_a_listing_names_our_family_and_table(tmp_path: Path) -> None:
    command = NftCommand(stand_in(tmp_path, "echo listed"))
    assert command.list_table(6, "kproxy") == "listed\n"
    assert command.list_table(4, "kproxy", terse=False) == "listed\n"
    assert (tmp_path / "arguments").read_text() == "-t list table ip6 kproxy\nlist table ip kproxy\n"


def test_a_table_that_is_not_there_is_none(tmp_path: Path) -> None:
    command = NftCommand(stand_in(tmp_path, 'echo "Error: No such file or directory" >&2; exit 1'))
    assert command.list_table(4, "kproxy") is None


FORBIDDEN = ["flush ruleset", "add table ip kproxy\n  flush   ruleset\n", "list ruleset", "list sets", "monitor"]


@pytest.mark.parametrize("structure", FORBIDDEN)
def test_what_concerns_others_is_never_run(structure: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nft is never asked to"):
        NftCommand(stand_in(tmp_path, "exit 0")).load(structure)
    assert not (tmp_path / "arguments").exists()


FAILURES: list[tuple[str, str, int, list[str]]] = [
    ("refusal", 'echo "Error: syntax error" >&2; exit 1', 1, ["failed with exit code 1", "syntax error", "nft 1.0.6"]),
    ("crash", "kill -SEGV $$", -11, ["SIGSEGV", "another program made with a newer nft", "nft 1.0.6", "-f -"]),
    ("abort", "kill -ABRT $$", -6, ["SIGABRT", "another program made with a newer nft"]),
]


@pytest.mark.parametrize(
    ("body", "returncode", "words"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES]
)
def test_a_failure_says_command_version_and_reason(
    body: str, returncode: int, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(NftError) as raised:
        NftCommand(stand_in(tmp_path, body)).load("add table ip kproxy")
    assert raised.value.returncode == returncode
    assert raised.value.version == "1.0.6"
    for part in words:
        assert part in str(raised.value)


def test_what_nft_complains_is_bounded(tmp_path: Path) -> None:
    body = "head -c 10000000 /dev/zero | tr '\\0' x >&2; exit 1"
    with pytest.raises(NftError) as raised:
        NftCommand(stand_in(tmp_path, body)).load("add table ip kproxy")
    assert raised.value.stderr.endswith("x [...]")
    assert len(str(raised.value)) < 5000


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(NftError, match=r"did not end within 0\.2 s and was killed"):
        NftCommand(stand_in(tmp_path, "exec tail -f /dev/null"), timeout_seconds=0.2).load("add table ip kproxy")


@pytest.mark.parametrize(
    ("version", "refused"),
    [("nftables v1.0.0 (x)", True), ("nftables v0.9.9 (x)", True), ("nftables v1.0.1 (x)", False), ("no idea", False)],
)
def test_an_nft_that_is_too_old_loads_nothing(version: str, refused: bool, tmp_path: Path) -> None:
    command = NftCommand(stand_in(tmp_path, "exit 0", version))
    if refused:
        with pytest.raises(NftError, match=r"is older than 1\.0\.1; install a newer nftables package"):
            command.load("add table ip kproxy")
    else:
        command.load("add table ip kproxy")
    assert (tmp_path / "arguments").exists() != refused


def test_a_missing_nft_is_told(tmp_path: Path) -> None:
    with pytest.raises(NftError, match="is not installed; install package nftables"):
        NftCommand(str(tmp_path / "nft")).version()
