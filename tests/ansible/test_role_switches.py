"""Variables of roles mean what they say however they are given.

On the command line `-e takeover_verify=false` is a text, and not empty; `-e kproxy_api_servers=https://a,https://b` is
one as well, and what it holds are characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devtools.environment import COLLECTION

ROLES = sorted((COLLECTION / "roles").iterdir())


def of_type(role: Path, kind: str) -> set[str]:
    """Return the variables of a type; of lists those of single values, since nobody writes mappings as text."""
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return {
        name
        for entry in specs.values()
        for name, option in (entry.get("options") or {}).items()
        if option["type"] == kind and option.get("elements") != "dict"
    }


def unguarded(role: Path, name: str, guard: str) -> Iterator[str]:
    """Yield places that use a variable as it is, but for those that hand it to a module or another role."""
    for path in sorted(path for folder in ("tasks", "vars", "templates") for path in (role / folder).glob("*")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            used = re.sub(
                guard % {"name": name}, "", re.sub(r"\{\{ %s( \| default\(omit, true\))? \}\}" % name, "", line)
            )
            if re.search(r"\b%s\b" % name, used) and not used.lstrip().startswith("#"):
                yield f"{path.relative_to(COLLECTION)}:{number}: {line.strip()}"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: str(role.name))
def test_every_switch_is_read_as_one(role: Path) -> None:
    guard = r"\b%(name)s \| bool"
    assert [place for name in of_type(role, "bool") for place in unguarded(role, name, guard)] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: str(role.name))
def test_every_list_is_read_as_one(role: Path) -> None:
    guard = r"\b%(name)s \| split\(','\).* if %(name)s is string else %(name)s\b|(into |fail_msg: \")%(name)s\b"
    assert [place for name in of_type(role, "list") for place in unguarded(role, name, guard)] == []
