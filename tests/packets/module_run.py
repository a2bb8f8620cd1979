"""Run a module of the collection as Ansible would, in a network namespace of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_module(name: str, options: Mapping[str, Any], joiner: Callable[[], None]) -> dict[str, Any]:
    """Return what the module says, also when it fails; `joiner` brings its process into the namespace."""
    done = subprocess.run(
        [sys.executable, "-m", f"ansible_collections.kproxy.dataplane.plugins.modules.{name}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": dict(options)}),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=joiner,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result
