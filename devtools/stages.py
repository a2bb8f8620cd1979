"""The stages of `./dev test`: what is checked and by which command. Adding a check is adding an entry."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devtools import ansible_test
from devtools.bootstrap import BUILD_PACKAGES, OLDEST, ensure_environment, ensure_packages
from devtools.environment import BIN, COLLECTION, ROOT
from devtools.molecule import scenarios

PYTEST = ["pytest", "--color=no", "-p", "no:cacheprovider"]
DEV = [sys.executable, "-m", "devtools"]

#: Lanes, about equally long: one keeps a processor busy, with the code at first and then with the corpora, each case in
#: a world of its own; in the other are the tests of namespaces and lab nodes, which mostly wait.
CODE = "code"
PACKETS = "packets"


@dataclass(frozen=True)
class Work:
    """One command of a stage. `nothing_done` is what it prints when it checked nothing, and yet ends with 0."""

    command: list[str]
    folder: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict)
    nothing_done: str = ""


@dataclass(frozen=True)
class Stage:
    """A named check. The commands are made when its turn comes, since some need copies or environments first.

    lane: stages of one lane run one after the other, those of two lanes side by side.
    """

    name: str
    what: str
    works: Callable[[], list[Work]]
    lane: str = CODE


def of(*commands: list[str]) -> Callable[[], list[Work]]:
    """Return commands run as they are from the project's root."""
    return lambda: [Work(command) for command in commands]


def unit_tests() -> list[Work]:
    """Tables of cases; those of the eBPF programs compare the shipped objects with what their sources compile to."""
    ensure_packages(BUILD_PACKAGES)
    return [Work([*PYTEST, str(COLLECTION / "tests/unit"), "tests/devtools"])]


#: Test folders that run modules and playbooks, which keeps a processor busy.
PLAY_FOLDERS = ("tests/ansible", "tests/bootstrap", "tests/takeover")


def packet_tests() -> list[Work]:
    """Every other test folder that needs root and namespaces; the eBPF ones also rebuild the programs."""
    ensure_packages(BUILD_PACKAGES)
    return [Work([*PYTEST, "tests", *(f"--ignore={folder}" for folder in ("tests/devtools", *PLAY_FOLDERS))])]


def play_tests() -> list[Work]:
    """Modules and playbooks on namespaces of this machine."""
    ensure_packages(BUILD_PACKAGES)
    return [Work([*PYTEST, *PLAY_FOLDERS])]


def on_both_cores(*verbs: list[str]) -> Callable[[], list[Work]]:
    """Return ansible-test commands for the newest ansible-core here and for the oldest supported one."""

    def works() -> list[Work]:
        found = []
        for name, venv in (("newest", BIN.parent), ("oldest", ensure_environment(OLDEST))):
            folder, environment = ansible_test.copy_collection(name), ansible_test.environment(venv)
            version = python_version(venv)
            for verb in verbs:
                command = [str(venv / "bin/ansible-test"), *verb, "--local", "--python", version]
                found.append(Work(command, folder, environment, nothing_done="All targets skipped"))
        return found

    return works


def playbook_syntax() -> list[Work]:
    """Return a syntax check with all inventories per ansible-core."""
    inventories = sorted(path.parent for path in (COLLECTION / "inventories").glob("*/hosts.yml"))
    words = [word for inventory in inventories for word in ("-i", str(inventory))]
    return [
        Work([str(venv / "bin/ansible-playbook"), *words, "--syntax-check", "site.yml"])
        for venv in (BIN.parent, ensure_environment(OLDEST))
    ]


def python_version(venv: Path) -> str:
    """Return the minor version of an environment's Python, as ansible-test wants it."""
    return next(venv.glob("lib/python3*")).name.removeprefix("python")


def molecule_scenarios() -> list[Work]:
    """Return one run per scenario."""
    return [Work([*DEV, "molecule", scenario]) for scenario in scenarios()]


STAGES = [
    Stage("ruff", "lint and format of all Python", of(["ruff", "check", "."], ["ruff", "format", "--check", "."])),
    Stage("mypy", "strict types of all Python", of(["mypy"])),
    Stage("unit", "tables of cases, no kernel", unit_tests),
    Stage("packets", "real packets, tables and programs in namespaces", packet_tests, PACKETS),
    Stage("corpus-model", "the corpus against the service table", of([*DEV, "conformance", "--backend", "model"])),
    Stage("ansible-lint", "roles and playbooks, production profile", of(["ansible-lint", "--offline", "--strict"])),
    Stage("syntax", "playbooks with all inventories, on both cores", playbook_syntax),
    Stage(
        "docs",
        "changelog fragments and the documentation of modules and roles",
        lambda: [
            Work([str(BIN / "antsibull-changelog"), "lint"], COLLECTION),
            Work(
                [str(BIN / "antsibull-docs"), "lint-collection-docs", "--plugin-docs", "."],
                ansible_test.copy_collection("docs"),
            ),
        ],
    ),
    Stage("sanity", "ansible-test sanity on both cores", on_both_cores(["sanity"])),
    Stage("ansible-units", "ansible-test units on both cores", on_both_cores(["units"])),
    Stage("plays", "modules and playbooks, on namespaces of this machine", play_tests),
    Stage("corpus-nft", "the corpus with packets through nftables", of([*DEV, "conformance", "--backend", "nft"])),
    Stage("corpus-ebpf", "the corpus with packets through eBPF", of([*DEV, "conformance", "--backend", "ebpf"])),
    Stage("molecule", "scenarios on lab nodes: converge, idempotence, verify", molecule_scenarios, PACKETS),
]
