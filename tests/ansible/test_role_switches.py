"""Switches of roles mean what they say however they are given: `-e takeover_verify=false` is a text, and not empty."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devtools.environment import COLLECTION

ROLES = sorted((COLLECTION / "roles").iterdir())


def switches(role: Path) -> set[str]:
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return {
        name
        for entry in specs.values()
        for name, option in (entry.get("options") or {}).items()
        if option["type"] == "bool"
    }


def unguarded(role: Path, name: str) -> Iterator[str]:
    """Yield places that use a switch as it is, but for those that hand it to a module or another role."""
    for path in sorted(path for folder in ("tasks", "vars", "templates") for path in (role / folder).glob("*")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            used = re.sub(r"\{\{ %s \}\}" % name, "", line)
            if re.search(r"\b%s\b(?! \| bool)" % name, used) and not used.lstrip().startswith("#"):
                yield f"{path.relative_to(COLLECTION)}:{number}: {line.strip()}"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: str(role.name))
def test_every_switch_is_read_as_one(role: Path) -> None:
    assert [place for name in switches(role) for place in unguarded(role, name)] == []
