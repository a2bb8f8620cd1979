"""Which manifests the role `sidecar` delivers: those that the modules read from the same place, and never none.

Check mode, on this machine: nothing is written.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.ansible_environment import ansible_environment

PLAYBOOK = """
- name: Deliver
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Deliver the manifests
      ansible.builtin.include_role:
        name: kproxy.dataplane.sidecar
        tasks_from: manifests.yml
"""
REFUSED = "neither a file nor a folder"

PLACES = [
    # where the manifests are, seen from the playbook; what is delivered
    ("folder/a.yaml", ["a.yaml"]),
    ("folder/mistyped.yaml", []),
]


@pytest.mark.parametrize(("place", "delivered"), PLACES, ids=[place for place, _delivered in PLACES])
def test_manifests_are_looked_for_beside_the_playbook(place: str, delivered: list[str], tmp_path: Path) -> None:
    plays = tmp_path / "plays"
    for folder in ("plays/folder", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (plays / "play.yml").write_text(PLAYBOOK)
    (plays / "folder" / "a.yaml").write_text("{}\n")
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "--check", str(plays / "play.yml")]
        + ["-e", f"sidecar_manifests={place}"],
        cwd=tmp_path / "elsewhere",
        env=ansible_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    assert [line.split("item=")[1].rstrip(")") for line in text.splitlines() if "=> (item=" in line] == delivered, text
    assert (done.returncode != 0, REFUSED in " ".join(text.split())) == (not delivered, not delivered), text
