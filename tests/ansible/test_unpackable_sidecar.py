"""A controller that cannot pack the sidecar says so before a node is programmed, which nobody would keep in step.

Check mode, in a namespace: nothing is written.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from devtools.conformance.netns import NetworkNamespace
from devtools.environment import ROOT
from tests.ansible_environment import ansible_environment

SITE = ROOT / "site.yml"


def test_site_stops_before_services_are_programmed(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text("all: {hosts: {node: {ansible_connection: local}}}\n")
    (tmp_path / "no-wheels").mkdir()
    given = ["kproxy_source=manifests", f"kproxy_manifests={ROOT / 'examples/services'}"]
    given += [f"kproxy_wheels={tmp_path / 'no-wheels'}", "preflight_fix=false"]
    network = NetworkNamespace()
    try:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), "--check", str(SITE)]
            + ["-i", str(tmp_path / "hosts.yml"), *(word for value in given for word in ("-e", value))],
            env=ansible_environment(XDG_CACHE_HOME=str(tmp_path / "cache")),
            preexec_fn=network.joiner(),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        network.close()
    text = " ".join((done.stdout + done.stderr).split())
    assert "the sidecar's libraries cannot be installed" in text, text
    assert "[kproxy.dataplane.preflight : Look at the node]" in text, text
    assert "[kproxy.dataplane.dataplane :" not in text, text
