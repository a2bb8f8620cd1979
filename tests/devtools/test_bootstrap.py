"""The bootstrap's pure parts: package lists, interpreter search, environment keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools import bootstrap

LISTINGS = [
    # name                 text                                   names
    ("name and reason",    "nftables   the nft command\n",        ["nftables"]),
    ("comments and blank", "# a comment\n\n  zstd  packs\n",      ["zstd"]),
    ("empty",              "",                                    []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "names"), [row[1:] for row in LISTINGS], ids=[row[0] for row in LISTINGS])
def test_package_names(text: str, names: list[str]) -> None:
    assert bootstrap.package_names(text) == names


@pytest.mark.parametrize("listing", [bootstrap.PACKAGES, bootstrap.BUILD_PACKAGES])
def test_every_package_has_a_reason(listing: Path) -> None:
    lines = [line for line in listing.read_text().splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line for line in lines if len(line.split()) < 2] == []


def fake_python(folder: Path, name: str, code: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\nexit {code}\n")
    program.chmod(0o755)
    return program


def test_interpreter_search_skips_shims_that_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_python(tmp_path / "shims", "python3.13", 127)
    pyenv = fake_python(tmp_path / "pyenv/versions/3.13.1/bin", "python3.13", 0)
    older = fake_python(tmp_path / "bin", "python3.11", 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:{tmp_path / 'bin'}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert bootstrap.find_interpreter(["3.13", "3.11"]) == ("3.13", pyenv)
    assert bootstrap.find_interpreter(["3.12", "3.11"]) == ("3.11", older)
    with pytest.raises(bootstrap.BootstrapError, match=r"3\.12"):
        bootstrap.find_interpreter(["3.12"])


def test_key_follows_the_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    (tmp_path / "needs.txt").write_text("a==1\n")
    environment = bootstrap.Environment(".venv", ("needs.txt",), ("3.11",))
    first = bootstrap.environment_key(environment)
    assert bootstrap.environment_key(environment) == first
    (tmp_path / "needs.txt").write_text("a==2\n")
    assert bootstrap.environment_key(environment) != first


def test_link_is_switched_in_one_step(tmp_path: Path) -> None:
    link = tmp_path / ".venv"
    for target in ("one", "two"):
        (tmp_path / target).mkdir()
        bootstrap.switch_link(link, tmp_path / target)
        assert link.resolve() == tmp_path / target
    assert sorted(path.name for path in tmp_path.iterdir()) == [".venv", "one", "two"]


def test_requirements_are_pinned_and_explained() -> None:
    reasons = (bootstrap.ROOT / "docs/design/dependencies.md").read_text()
    for listing in sorted((bootstrap.ROOT / "devtools").glob("requirements*.txt")):
        lines = [line for line in listing.read_text().splitlines() if line and not line.startswith("#")]
        for line in lines:
            name, pinned, _version = line.partition("==")
            assert pinned, f"{listing.name}: {line!r} is not pinned"
            assert f"`{name}`" in reasons, f"{name} of {listing.name} has no reason in docs/design/dependencies.md"
