"""The role `dataplane` removes what serves a node, whatever backend the inventory names by now."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ansible_environment import ansible_environment
from tests.module_run import run_module

NAMESPACE = f"kp-removal-by-role-{os.getpid()}"
PLAYBOOK = """
- name: Remove
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Remove all
      ansible.builtin.include_role:
        name: kproxy.dataplane.dataplane
      vars:
        dataplane_state: absent
        dataplane_backend: ebpf
"""
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"clusterIP": "10.96.0.20", "ports": [{"port": 80}]},
}


@pytest.fixture
def namespace() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.fail("needs root")
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    yield NAMESPACE
    subprocess.run(["ip", "netns", "delete", NAMESPACE], check=True)


def test_a_node_that_was_not_switched_over_yet(namespace: str, tmp_path: Path) -> None:
    inside = ["ip", "netns", "exec", namespace]
    (tmp_path / "play.yml").write_text(PLAYBOOK)

    def tables() -> str:
        return subprocess.run([*inside, "nft", "list", "tables"], check=True, capture_output=True, text=True).stdout

    def changed(*arguments: str) -> int:
        """Run the playbook and return how many tasks changed something."""
        done = subprocess.run(
            [*inside, str(Path(sys.executable).with_name("ansible-playbook")), str(tmp_path / "play.yml")]
            + ["-e", "ansible_python_interpreter=/usr/bin/python3", *arguments],
            env=ansible_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        recap = re.search(r"changed=(\d+) .*failed=0 ", done.stdout)
        assert recap is not None, done.stdout + done.stderr
        return int(recap[1])

    run_module("nftables", {"objects": [SERVICE], "node_name": "n1"}, before=inside)
    before = tables()
    assert "table ip kproxy" in before
    assert (changed("--check"), tables()) == (1, before)
    assert (changed(), tables()) == (1, "")
