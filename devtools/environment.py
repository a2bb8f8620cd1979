"""What a command of the project sees: paths, and the variables that make its tools behave the same everywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from devtools.bootstrap import CACHE, ROOT

COLLECTION = ROOT / "ansible_collections/kproxy/dataplane"
BIN = Path(sys.executable).parent

__all__ = ["BIN", "CACHE", "COLLECTION", "ROOT", "command_environment"]


def command_environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables to add to `base` for any tool the project runs.

    The environment's own programs come first, Ansible finds the project's settings from any folder, and text is
    UTF-8 even on a machine without locales.
    """
    path = base.get("PATH", os.defpath).split(os.pathsep)
    return {
        "PATH": os.pathsep.join([str(BIN), *(folder for folder in path if folder != str(BIN))]),
        "VIRTUAL_ENV": str(BIN.parent),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
    }
