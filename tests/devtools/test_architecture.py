"""The table of packages in docs/design/architecture.md holds: which there are, who imports whom, who is pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from devtools.environment import COLLECTION, ROOT

PACKAGES = COLLECTION / "plugins/module_utils"
PAGE = ROOT / "docs/design/architecture.md"
#: What a pure package may not import: the host, other programs, the network, the clock. `socket` is allowed for
#: inet_pton alone, which only `_objects` needs.
EFFECTS = {"asyncio", "ctypes", "fcntl", "os", "pathlib", "select", "shutil", "signal", "socket", "subprocess",
           "tempfile", "threading", "time", "urllib.request"}  # fmt: skip


class Row(NamedTuple):
    """What the page says of one package."""

    pure: bool
    imports: set[str]


def documented() -> dict[str, Row]:
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"`_\w+`", cells[0]):
            found[cells[0].strip("`")] = Row(cells[1] == "yes", set(re.findall(r"`(_\w+)`", cells[3])))
    return found


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def modules_of(package: str) -> set[str]:
    return {module for path in (PACKAGES / package).rglob("*.py") for module in imported_modules(path)}


def packages_in(modules: set[str]) -> set[str]:
    marker = ".plugins.module_utils."
    return {module.split(marker)[1].split(".")[0] for module in modules if marker in module}


DOCUMENTED = documented()


def test_every_package_is_on_the_page() -> None:
    assert sorted(DOCUMENTED) == sorted(path.parent.name for path in PACKAGES.glob("*/__init__.py"))


@pytest.mark.parametrize("package", sorted(DOCUMENTED))
def test_imports_are_those_of_the_page(package: str) -> None:
    assert sorted(packages_in(modules_of(package)) - {package}) == sorted(DOCUMENTED[package].imports)


@pytest.mark.parametrize("package", sorted(name for name, row in DOCUMENTED.items() if row.pure))
def test_pure_packages_have_no_effects(package: str) -> None:
    allowed = {"socket"} if package == "_objects" else set()
    assert modules_of(package) & (EFFECTS - allowed) == set()
    assert all(DOCUMENTED[other].pure for other in DOCUMENTED[package].imports)
