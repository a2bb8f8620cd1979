"""`./dev run COMMAND...`: one command in the project's environment."""

from __future__ import annotations

import os
import sys


def main(argv: list[str]) -> int:
    """Replace this process by the command; returns only when there is nothing to run."""
    if not argv:
        print("usage: ./dev run COMMAND...   e.g. ./dev run ansible-playbook site.yml -l gpu-nodes", file=sys.stderr)
        return 2
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        print(f"dev run: {argv[0]}: no such command in the project's environment or on PATH", file=sys.stderr)
        return 127
