"""Secrets that roles and modules come by are in nothing that Ansible prints, however much it prints and whatever fails.

Check mode, in a network namespace that ends with the run: nothing is written.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.ansible_environment import ansible_environment

TOKEN, KEY, PASSWORD = "token-nobody-may-see", "key-nobody-may-see", "password-nobody-may-see"
MANIFESTS: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.20", "ports": [{"port": 80}]},
    },
    {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "database"}, "stringData": {"password": PASSWORD}},
    {
        "apiVersion": "v1",
        "kind": "List",
        "items": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mail"}, "data": {"password": PASSWORD}}],
    },
]


class Case(NamedTuple):
    """A role with its variables, and what must be printed for the case to be what it says."""

    role: str
    variables: dict[str, Any]
    said: str
    fails: bool


CREDENTIALS = {
    "dataplane_kubeconfig": "/nonexistent/kubeconfig",
    "kproxy_api_servers": ["https://127.0.0.1:9"],
    "kproxy_api_token": TOKEN,
    "kproxy_api_client_cert": "a certificate",
    "kproxy_api_client_key": "{{ a_key }}",
    "a_key": KEY,
}
CASES = {
    "a mistyped option": Case("dataplane", {**CREDENTIALS, "dataplane_state": "presnt"}, "must be one of", True),
    "a key that is none": Case("dataplane", CREDENTIALS, "kubeconfig_data", True),
    "Secrets among the objects": Case("dataplane", {"kproxy_source": "manifests"}, "shop/web: 10.96.0.20:80", False),
    "Secrets among the manifests": Case("sidecar", {"tasks_from": "manifests.yml"}, "+# This one may be seen", False),
}


@pytest.mark.parametrize("name", CASES)
def test_no_secret_is_printed(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    (manifests / "all.yaml").write_text(yaml.safe_dump_all(MANIFESTS))
    (manifests / "web.yaml").write_text(yaml.safe_dump_all([]) + "# This one may be seen\n")
    playbook = tmp_path / "play.yml"
    options = {"name": f"kproxy.dataplane.{case.role}"}
    variables = {**case.variables, "kproxy_manifests": str(manifests), "kproxy_backend": "nftables"}
    if "tasks_from" in variables:
        options["tasks_from"] = variables.pop("tasks_from")
    task = {"name": "Run the role", "ansible.builtin.include_role": options}
    play = {"name": name, "hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task]}
    playbook.write_text(yaml.safe_dump([{**play, "vars": variables}]))
    done = subprocess.run(
        [*("unshare", "--net"), str(Path(sys.executable).with_name("ansible-playbook")), str(playbook)]
        + ["--check", "--diff", "-vvvvv"],
        cwd=tmp_path,
        env=ansible_environment(ANSIBLE_INJECT_INVOCATION="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout + done.stderr
    assert (case.said in text, done.returncode != 0) == (True, case.fails), text
    assert [secret for secret in (TOKEN, KEY, PASSWORD) if secret in text] == []
