"""What the documents name is there: links and their anchors, commands of `dev`, the collection's content."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from devtools.__main__ import COMMANDS
from devtools.environment import COLLECTION, ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def documents() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if not name.startswith(("tests/cases/", "tests/conformance"))]


DOCUMENTS = documents()


def anchor(heading: str) -> str:
    """Return what a git forge makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    broken = []
    for link in LINK.findall((ROOT / name).read_text()):
        path, _hash, part = link.partition("#")
        target = Path(os.path.normpath(ROOT / name / ".." / path)) if path else ROOT / name
        if link.startswith("https://"):
            continue
        if not target.exists() or (part and part not in map(anchor, HEADING.findall(target.read_text()))):
            broken.append(link)
    assert broken == []


def content() -> set[str]:
    """Return the names of all that the collection has, and of what others find in it."""
    files = [*COLLECTION.glob("plugins/*/[!_]*.py"), *COLLECTION.glob("playbooks/*.yml"), *COLLECTION.glob("roles/*")]
    return {path.stem for path in files}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_and_content_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    commands = set(re.findall(r"\./dev ([a-z]+)", text))
    assert commands - set(COMMANDS) == set()
    named = set(re.findall(r"\bkproxy\.dataplane\.([a-z_]+)\b(?!/)", text))
    # The other name is that of a Python package.
    assert named - content() - {"plugins"} == set()


def test_all_playbooks_and_modules_are_in_the_collections_readme() -> None:
    text = (COLLECTION / "README.md").read_text()
    plugins = [path.stem for kind in ("modules", "filter") for path in COLLECTION.glob(f"plugins/{kind}/[!_]*.py")]
    playbooks = [path.stem for path in COLLECTION.glob("playbooks/*.yml")]
    roles = [path.name for path in COLLECTION.glob("roles/*")]
    assert [one for one in [*plugins, *playbooks, *roles] if f"`{one}`" not in text and f".{one}`" not in text] == []


def test_all_modules_share_their_defaults() -> None:
    group = yaml.safe_load((COLLECTION / "meta/runtime.yml").read_text())["action_groups"]["kproxy"]
    assert sorted(group) == sorted(path.stem for path in COLLECTION.glob("plugins/modules/*.py"))
