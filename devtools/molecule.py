"""`./dev molecule SCENARIO`: `molecule test` of one scenario on a lab of its own, beside any other."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from devtools.environment import BIN, CACHE, COLLECTION, ROOT
from devtools.lab import machines
from devtools.lab.topology import Lab, LabError


def scenarios() -> list[str]:
    """Return the names of the scenarios on lab nodes; `./dev vagrant` runs the other."""
    found = {path.parent.name for path in (COLLECTION / "molecule").glob("*/molecule.yml")}
    return sorted(found - {"vagrant"})


def instance(scenario: str) -> str:
    """Return the name of a scenario's lab; underscores do not fit into one."""
    return f"m-{scenario.replace('_', '-')}"


def end_leftovers(ephemeral: Path) -> int:
    """End what a scenario started in the background, such as its API server; return how many there were.

    Such processes have left our process group; what tells them is the folder in their environment, which is ours alone.
    """
    mark = f"MOLECULE_EPHEMERAL_DIRECTORY={ephemeral}".encode()
    ended = 0
    for entry in Path("/proc").glob("[0-9]*/environ"):
        # A process that ends meanwhile is what we want.
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                os.kill(int(entry.parent.name), signal.SIGTERM)
                ended += 1
    return ended


def main(argv: list[str]) -> int:
    """Run a scenario from nothing to nothing; with --keep its nodes stay for a look around."""
    parser = argparse.ArgumentParser(prog="./dev molecule", description=__doc__)
    parser.add_argument("scenario", choices=scenarios())
    parser.add_argument("--keep", action="store_true", help="leave its nodes up: ./dev lab --instance m-SCENARIO ...")
    arguments = parser.parse_args(argv)
    lab = Lab(instance(arguments.scenario))
    ephemeral = CACHE / "molecule" / arguments.scenario
    environment = os.environ | {
        "KPROXY_LAB": lab.instance,
        "MOLECULE_EPHEMERAL_DIRECTORY": str(ephemeral),
        # Molecule writes its own settings file per scenario.
        "ANSIBLE_CONFIG": "",
        # Molecule looks for scenarios below the folder that it runs in.
        "MOLECULE_GLOB": str(COLLECTION / "molecule/*/molecule.yml"),
    }
    # Molecule frames and wraps what it runs; this keeps most lines whole where nobody told the width.
    environment.setdefault("COLUMNS", "160")
    command = [str(BIN / "molecule"), "test", "--scenario-name", arguments.scenario]
    if arguments.keep:
        command += ["--destroy", "never"]
    # What a killed run left: its nodes, its other processes, and molecule's belief that they are there.
    machines.down(lab)
    end_leftovers(ephemeral)
    shutil.rmtree(ephemeral, ignore_errors=True)
    try:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    finally:
        if not arguments.keep:
            try:
                machines.down(lab)
            except LabError as error:
                print(f"dev molecule: {error}", file=sys.stderr)
            end_leftovers(ephemeral)
