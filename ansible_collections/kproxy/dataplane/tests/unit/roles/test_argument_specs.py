# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every role says what it takes: argument specs, defaults and README name the same variables with the same values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = sorted(path for path in (Path(__file__).parents[3] / "roles").iterdir() if path.is_dir())


def load(path: Path) -> dict[str, Any]:
    """Return a YAML file's mapping."""
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def options(role: Path) -> dict[str, Any]:
    """Return the options of a role's main entry point."""
    found: dict[str, Any] = load(role / "meta" / "argument_specs.yml")["argument_specs"]["main"].get("options") or {}
    return found


def follows(option: dict[str, Any], default: Any) -> bool:
    """Whether a default is a shared variable where the spec has a literal, or for a mapping nothing.

    Documentation tools cannot read a template as the default of such an option; and one that stands for a secret would
    be filled in and printed with the whole spec when any option has a wrong value.
    """
    found = re.fullmatch(r"\{\{ (\w+) \| default\((.*)\)(?: \| bool)? \}\}", str(default))
    if found is None or not (option["type"] in ("bool", "int", "dict") or option.get("no_log")):
        return False
    literal = option.get("default", {})
    return f"Follows C({found[1]})." in option["description"] and yaml.safe_load(found[2]) == literal


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_agree_with_the_argument_spec(role: Path) -> None:
    path = role / "defaults" / "main.yml"
    defaults = (load(path) if path.exists() else {}) or {}
    specified = options(role)
    in_spec = {name: option["default"] for name, option in specified.items() if "default" in option}
    following = {
        name: defaults[name]
        for name, option in specified.items()
        if name in defaults and follows(option, defaults[name])
    }
    assert {**in_spec, **following} == defaults


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_secrets_are_known_as_such_and_no_template_is_their_default(role: Path) -> None:
    secret = {name: option for name, option in options(role).items() if re.search("_(key|token|password)$", name)}
    assert [name for name, option in secret.items() if not option.get("no_log") or "{" in option["default"]] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_what_has_no_default_is_required(role: Path) -> None:
    path = role / "defaults" / "main.yml"
    defaults = (load(path) if path.exists() else {}) or {}
    assert [name for name, option in options(role).items() if name not in defaults and not option.get("required")] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_readme_tells_every_variable(role: Path) -> None:
    text = (role / "README.md").read_text(encoding="utf-8")
    assert [
        heading for heading in ("Name", "Description", "Variables", "Examples") if f"## {heading}\n" not in text
    ] == []
    assert [name for name in options(role) if f"`{name}`" not in text] == []
