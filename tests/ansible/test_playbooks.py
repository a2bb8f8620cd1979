"""What all playbooks promise: hosts that were meant, in batches, none after a failure; however Ansible is set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from devtools.environment import COLLECTION, ROOT

PLAYBOOKS = sorted((COLLECTION / "playbooks").glob("*.yml"))
GUARD = "tasks/hosts.yml"
PLAY = [
    {
        "name": "As the playbooks do",
        "hosts": "{{ kproxy_hosts | default('all') }}",
        "gather_facts": False,
        "tasks": [{"name": "Guard", "ansible.builtin.import_tasks": str(COLLECTION / "playbooks" / GUARD)}],
    }
]
INVENTORY = {"all": {"hosts": {"meant": {}, "other": {}}, "vars": {"kproxy_hosts": "meant"}}}


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_nobodys_settings_change_the_strategy(path: Path) -> None:
    """With `free` Ansible goes on after failures, whatever max_fail_percentage says, and knows no run_once."""
    plays = yaml.safe_load(path.read_text())
    assert {play.get("strategy") for play in plays} == {"ansible.builtin.linear"}


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_the_hosts_are_looked_at_first(path: Path) -> None:
    plays = [play for play in yaml.safe_load(path.read_text()) if "kproxy_hosts" in play["hosts"]]
    assert {play["pre_tasks"][0].get("ansible.builtin.import_tasks") for play in plays} <= {GUARD}
    assert plays or path.stem == "bootstrap"


@pytest.mark.parametrize("given", [None, "meant", '{"kproxy_hosts": ["meant"]}'], ids=["inventory", "text", "list"])
def test_a_host_that_was_not_meant_is_refused(given: str | None, tmp_path: Path) -> None:
    """Ansible reads no inventory variable before it settles the hosts of a play."""
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(INVENTORY))
    (tmp_path / "play.yml").write_text(yaml.safe_dump(PLAY))
    extra = [] if given is None else ["-e", given if given.startswith("{") else f"kproxy_hosts={given}"]
    code, text = play(tmp_path, "play.yml", *extra)
    assert "meant : ok=1" in text, text
    refused = "kproxy_hosts leaves other out" in text
    assert (refused, code != 0, "other : ok=0" in text) == ((given is None,) * 3), text


def play(folder: Path, playbook: str, *arguments: str) -> tuple[int, str]:
    """Run a playbook on the folder's inventory; return the exit code and what was said, on one line."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "inventory.yml", playbook, *arguments],
        cwd=folder,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


CLUSTERS: list[tuple[str, dict[str, str], str]] = [
    (
        "masters",
        {"bootstrap_control_plane_group": "masters"},
        "a is of the control plane and would join among the workers",
    ),
    ("masters", {}, "The inventory has no host in a group control-plane"),
]


@pytest.mark.parametrize(("group", "variables", "said"), CLUSTERS, ids=["in the inventory", "nowhere"])
def test_a_control_plane_that_the_plays_cannot_see(
    group: str, variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    settings = {**variables, "ansible_connection": "local", "bootstrap_control_plane_endpoint": "192.0.2.200:6443"}
    inventory = {"all": {"vars": settings, "hosts": {"b": {}}, "children": {group: {"hosts": {"a": {}}}}}}
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
    code, text = play(tmp_path, "kproxy.dataplane.bootstrap", "--check")
    assert (code != 0, said in text) == (True, True), text
    assert "Install what a node runs" not in text
