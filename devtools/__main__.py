"""`./dev COMMAND`: find the command's module and hand it the rest of the line."""

from __future__ import annotations

import importlib
import os
import sys

from devtools.environment import command_environment

# One line per command: the module of the same name in this package, imported only when asked for.
COMMANDS = {
    "demo": "build the lab, run site.yml on it, prove it with packets, leave it up to look around",
    "test": "everything continuous integration checks",
    "lab": "up | down | pods | ssh NODE | status: the seven-node lab by itself",
    "run": "a command in the project's environment: ./dev run ansible-playbook site.yml -l gpu-nodes",
    "molecule": "`molecule test` of one scenario on lab nodes",
    "vagrant": "the molecule scenario on virtual machines: real kernels, modules, IPVS, a true reboot",
    "conformance": "the corpus of service semantics, with real packets or against the service table",
    "bench": "sync | connect: benchmarks, printed as figures and ratios",
}


def usage() -> str:
    """Return the list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(["usage: ./dev COMMAND ...", "", *lines])


def main(argv: list[str]) -> int:
    """Dispatch one command line; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    name, *rest = argv
    if name not in COMMANDS:
        print(f"dev: there is no command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    os.environ.update(command_environment())
    module = importlib.import_module(f"devtools.{name}")
    code: int = module.main(rest)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
