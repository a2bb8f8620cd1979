"""Walking the network namespaces of a node: which are visited, and what is said of those that cannot be."""

from __future__ import annotations

import subprocess
import sys

from devtools.conformance.netns import NetworkNamespace
from devtools.environment import ROOT

VISIT = """
import os
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netns_walk import in_every_namespace
visited, why = in_every_namespace(lambda: os.stat("/proc/thread-self/ns/net").st_ino)
print(len(set(visited)) == len(visited), os.stat("/proc/self/ns/net").st_ino in visited, why)
"""


def visit(*before: str) -> str:
    return subprocess.run(
        [*before, sys.executable, "-c", VISIT], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_each_namespace_is_visited_once() -> None:
    other = NetworkNamespace()
    holder = subprocess.Popen(["sleep", "infinity"], preexec_fn=other.joiner())
    try:
        assert visit() == "True True"
    finally:
        holder.kill()
        holder.wait()
        other.close()


def test_what_cannot_be_entered_is_said() -> None:
    assert "cannot be entered: Operation not permitted" in visit(
        "setpriv", "--inh-caps=-sys_admin", "--bounding-set=-sys_admin"
    )
