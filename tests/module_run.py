"""Run a module of the collection as Ansible would, in whatever namespace a test puts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_module(
    name: str, options: Mapping[str, Any], joiner: Callable[[], None] | None = None, before: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what the module says, also when it fails; one that dies instead fails the test.

    joiner: brings its process into a namespace. before: a command that starts it, such as `ip netns exec`.
    """
    done = subprocess.run(
        [*before, sys.executable, "-m", f"ansible_collections.kproxy.dataplane.plugins.modules.{name}"],
        input=json.dumps({"ANSIBLE_MODULE_ARGS": dict(options)}),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=joiner,
    )
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
