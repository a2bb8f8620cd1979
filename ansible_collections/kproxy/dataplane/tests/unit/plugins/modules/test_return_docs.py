# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation is YAML, and modules that report alike say so alike: Ansible knows no fragments for RETURN."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

#: Each writes things of its own kind.
OWN = {"elements"}
PARTS = {"DOCUMENTATION", "EXAMPLES", "RETURN"}
MODULES = Path(__file__).parents[4] / "plugins" / "modules"


def documented(module: str) -> dict[str, Any]:
    """Return what a module says of itself, by the name of the variable that says it."""
    found = {}
    for statement in ast.parse((MODULES / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) in PARTS:
            found[ast.unparse(statement.targets[0])] = yaml.safe_load(ast.literal_eval(statement.value))
    return found


def returns(module: str) -> dict[str, Any]:
    """Return what a module documents as its results."""
    result: dict[str, Any] = documented(module)["RETURN"]
    return result


@pytest.mark.parametrize("module", sorted(path.stem for path in MODULES.glob("*.py")))
def test_every_part_is_there_and_can_be_read(module: str) -> None:
    assert set(documented(module)) == PARTS


def test_both_backends_say_the_same_of_what_both_return() -> None:
    nftables, ebpf = returns("nftables"), returns("ebpf")
    shared = (nftables.keys() & ebpf.keys()) - OWN
    assert {"frontends", "endpoints", "refused"} <= shared
    assert {name: nftables[name] for name in shared} == {name: ebpf[name] for name in shared}
