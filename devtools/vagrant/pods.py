"""`python -m devtools.vagrant.pods FOLDER NODE`: a node's pods by a folder's EndpointSlices, for its pod.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from devtools.lab.topology import Node
from devtools.lab.workload import load, pods_behind


def main(folder: str, name: str) -> None:
    """Print what pod.py's verb `apply` reads."""
    node = Node(name)
    print(json.dumps([pod.description(node) for pod in pods_behind(load(Path(folder))).get(node, [])]))


if __name__ == "__main__":
    main(*sys.argv[1:])
