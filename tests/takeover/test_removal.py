"""The last step of a takeover, as the playbook `migrate` takes it: nothing is deleted that is not kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ansible_environment import ansible_environment
from tests.takeover.cluster import Cluster

ROOT = Path(__file__).parents[2]
PLAYBOOK = """
- name: Remove kube-proxy
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Remove it
      ansible.builtin.include_role:
        name: kproxy.dataplane.takeover
        tasks_from: remove.yml
"""


class Controller:
    """A folder from which Ansible is started."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        (folder / "play.yml").write_text(PLAYBOOK)

    def run(self, *arguments: str) -> tuple[bool, str]:
        """Return whether the playbook succeeded, and what it printed."""
        command = [
            *(str(Path(sys.executable).with_name("ansible-playbook")), "play.yml", "-i", "localhost,"),
            *("-e", f"ansible_python_interpreter={sys.executable}"),
            *("-e", f"kproxy_admin_kubeconfig={self.cluster.kubeconfig}", *arguments),
        ]
        environment = ansible_environment(PWD=str(self.folder))
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode == 0, done.stdout + done.stderr

    def backups(self) -> list[list[str]]:
        """Return the kinds of objects that each backup holds."""
        files = sorted(self.folder.glob("kube-proxy-backup.json*"))
        return [[item["kind"] for item in json.loads(path.read_text())["items"]] for path in files]

    def there(self) -> list[Any]:
        """Return the DaemonSets of kube-proxy that the cluster has."""
        found: list[Any] = self.cluster.module("kube_proxy_info", node_name="n1")["daemonsets"]
        return found


@pytest.fixture
def controller(cluster: Cluster, tmp_path: Path) -> Controller:
    folder = tmp_path / "controller"
    folder.mkdir()
    return Controller(folder, cluster)


def test_what_is_deleted_is_kept_where_ansible_was_started(controller: Controller) -> None:
    succeeded, text = controller.run("--check")
    assert succeeded, text
    assert (controller.backups(), len(controller.there())) == ([], 1)
    succeeded, text = controller.run()
    assert succeeded, text
    assert (controller.backups(), controller.there()) == ([["DaemonSet", "ConfigMap"]], [])
    assert (controller.folder / "kube-proxy-backup.json").stat().st_mode & 0o777 == 0o600
    succeeded, text = controller.run()
    assert "changed=0" in text
    assert controller.backups() == [["DaemonSet", "ConfigMap"]]
    # kubectl create -f
    kept = json.loads((controller.folder / "kube-proxy-backup.json").read_text())["items"]
    controller.cluster.admin.apply(*kept)
    assert len(controller.there()) == 1


def test_nothing_is_deleted_that_cannot_be_kept(controller: Controller) -> None:
    succeeded, text = controller.run("-e", f"kproxy_backup={controller.folder}/nowhere/backup.json")
    assert not succeeded
    assert "Destination directory" in text
    assert len(controller.there()) == 1
