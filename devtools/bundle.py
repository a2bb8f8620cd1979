"""`python -m devtools.bundle -o FILE`: the node's single file, without Ansible (tests, benchmarks, by hand)."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.plugin_utils._bundle import BundleError, build
from devtools.environment import CACHE


def main(argv: list[str] | None = None) -> int:
    """Pack the bundle and copy it to where it is wanted."""
    parser = argparse.ArgumentParser(prog="python -m devtools.bundle", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    parser.add_argument("--wheels", type=Path, help="folder with the pinned wheels; nothing is fetched then")
    arguments = parser.parse_args(argv)
    try:
        bundle = build(CACHE / "bundle", arguments.wheels)
    except BundleError as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    shutil.copy2(bundle.path, arguments.output)
    print(f"{arguments.output}: version {bundle.version}, sha256 {bundle.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
