"""`./dev`: every command of the table exists and unknown ones are refused with the table."""

from __future__ import annotations

import importlib

import pytest

from devtools.__main__ import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_module_with_main(name: str) -> None:
    assert callable(importlib.import_module(f"devtools.{name}").main)


def test_unknown_command_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labb"]) == 2
    stderr = capsys.readouterr().err
    assert "'labb'" in stderr
    assert all(name in stderr for name in COMMANDS)


@pytest.mark.parametrize(("argv", "code"), [([], 2), (["--help"], 0)])
def test_help_lists_the_commands(argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == code
    stdout = capsys.readouterr().out
    assert all(name in stdout for name in COMMANDS)
