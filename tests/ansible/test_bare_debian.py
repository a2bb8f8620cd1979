"""A preview on a Debian that lacks even what Ansible's modules for apt need says what would be installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from devtools.environment import ROOT

# Debian's own Python packages: python3-apt and python3-debian among them, nothing that Ansible itself runs on.
HIDE = 'mount -t tmpfs none /usr/lib/python3/dist-packages && exec "$@"'
PLAYBOOK = """
- name: Preview
  hosts: localhost
  connection: local
  gather_facts: false
  vars:
    bootstrap_control_plane_endpoint: 192.0.2.200:6443
    bootstrap_repositories: [{name: kubernetes, uris: ["https://mirror.example.org/deb"]}]
    __preflight_packages: [nftables]
    __preflight_sysctls: {}
    __preflight_modules: []
  tasks:
    - name: Preview what bootstrap would install
      ansible.builtin.include_role:
        name: kproxy.dataplane.bootstrap
        tasks_from: packages.yml
    - name: Preview what preflight would
      ansible.builtin.include_tasks: "{{ fix }}"
"""


def test_what_is_missing_is_predicted(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    fix = ROOT / "ansible_collections/kproxy/dataplane/roles/preflight/tasks/fix.yml"
    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", HIDE, "sh"]
        + [str(Path(sys.executable).with_name("ansible-playbook")), "play.yml", "--check", "-e", f"fix={fix}"]
        + ["-e", "ansible_python_interpreter=/usr/bin/python3"],
        cwd=tmp_path,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    changed = [line for line in done.stdout.splitlines() if line.startswith("changed: ")]
    # The library, the repository, bootstrap's packages and preflight's.
    assert (done.returncode, len(changed)) == (0, 4), done.stdout + done.stderr
