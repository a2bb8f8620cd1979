# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules that report alike say of their results must stay alike: Ansible knows no fragments for RETURN."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import yaml

#: Each writes things of its own kind.
OWN = {"elements"}
MODULES = Path(__file__).parents[4] / "plugins" / "modules"


def returns(module: str) -> dict[str, Any]:
    """Return what a module documents as its results."""
    for statement in ast.parse((MODULES / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "RETURN":
            documented: dict[str, Any] = yaml.safe_load(ast.literal_eval(statement.value))
            return documented
    raise AssertionError(f"{module} documents no results")


def test_both_backends_say_the_same_of_what_both_return() -> None:
    nftables, ebpf = returns("nftables"), returns("ebpf")
    shared = (nftables.keys() & ebpf.keys()) - OWN
    assert {"frontends", "endpoints", "refused"} <= shared
    assert {name: nftables[name] for name in shared} == {name: ebpf[name] for name in shared}
