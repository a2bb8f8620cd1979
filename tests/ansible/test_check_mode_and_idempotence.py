"""Case 28: check mode that touches nothing, diffs that can be read, second runs without a change, on a real kernel.

The steps of the case run one after the other against one network namespace and one API server, through the role
`dataplane`, as a user would run them.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from devtools.control_plane import StandIn
from tests.ansible_environment import ansible_environment

ROOT = Path(__file__).parents[2]
CASE = ROOT / "tests" / "cases" / "28-check-mode-and-idempotence"
NAMESPACE = f"kp-case-28-{os.getpid()}"
TOKEN = yaml.safe_load((CASE / "inventory.yml").read_text())["all"]["vars"]["kproxy_api_token"]
STEPS: list[dict[str, Any]] = yaml.safe_load((CASE / "steps.yaml").read_text())

PLAYBOOK = """
- name: Case 28
  hosts: n1
  gather_facts: false
  tasks:
    - name: Look at the node
      kproxy.dataplane.node_facts:
    - name: Say what preflight would fix
      ansible.builtin.debug:
        msg: "to install: {{ ansible_facts['kproxy_node'] | kproxy.dataplane.preflight
                             | map(attribute='packages') | flatten | join(' ') }}."
    - name: Program the Services
      ansible.builtin.include_role:
        name: kproxy.dataplane.dataplane
"""

SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"clusterIP": "10.96.0.20", "clusterIPs": ["10.96.0.20"], "ports": [{"name": "http", "port": 80}]},
}
SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    "endpoints": [
        {"addresses": ["10.244.1.5"], "nodeName": "n1", "conditions": {"ready": True}},
        {"addresses": ["10.244.2.5"], "nodeName": "n2", "conditions": {"ready": True}},
    ],
}
LINES = [
    "shop/web:http: 10.96.0.20:80/TCP dnat",
    "shop/web:http: endpoint 10.244.1.5:8080",
    "shop/web:http: endpoint 10.244.2.5:8080",
]
HIDE_NFT = """
mount -t tmpfs none "$1" && mkdir "$1/upper" "$1/work"
mount -t overlay none -o "lowerdir=/usr/sbin,upperdir=$1/upper,workdir=$1/work" /usr/sbin && rm /usr/sbin/nft
shift && exec "$@"
"""


class Run(NamedTuple):
    """One run of the playbook. changed: of the recap, None if the host failed."""

    changed: int | None
    text: str

    @property
    def added(self) -> list[str]:
        """Lines about Services that the diff adds."""
        return [line[1:] for line in self.text.splitlines() if line.startswith("+shop/")]

    @property
    def removed(self) -> list[str]:
        """Lines about Services that the diff removes."""
        return [line[1:] for line in self.text.splitlines() if line.startswith("-shop/")]


class Host:
    """The node: a network namespace, and what Ansible does to it."""

    def __init__(self, folder: Path, control_plane: StandIn) -> None:
        """Write the playbook and the variables that the case leaves to the collection."""
        self.control_plane = control_plane
        self.gone = ""
        self.kubeconfig = folder / "node" / "kubeconfig"
        self.hidden = folder / "hidden"
        self.hidden.mkdir()
        self.playbook = folder / "play.yml"
        self.playbook.write_text(PLAYBOOK)
        source = yaml.safe_load(control_plane.kubeconfig())
        cluster = source["clusters"][0]["cluster"]
        self.variables = folder / "variables.yml"
        self.variables.write_text(
            yaml.safe_dump(
                {
                    "ansible_python_interpreter": "/usr/bin/python3",
                    "kproxy_kubeconfig": str(self.kubeconfig),
                    "kproxy_api_servers": [cluster["server"]],
                    "kproxy_api_ca_cert": base64.b64decode(cluster["certificate-authority-data"]).decode(),
                    "kproxy_config": {"clusterCIDR": "{{ kproxy_cluster_cidr }}"},
                }
            )
        )

    def run(self, *arguments: str, before: tuple[str, ...] = (), fails: bool = False) -> Run:
        """Run the playbook in the namespace and see that it ends as it should; `before` is what starts it."""
        command = [
            *("ip", "netns", "exec", NAMESPACE),
            *before,
            *(str(Path(sys.executable).with_name("ansible-playbook")), str(self.playbook)),
            *("-i", str(CASE / "inventory.yml"), "-e", f"@{self.variables}", *arguments),
        ]
        environment = ansible_environment()
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        text = done.stdout + done.stderr
        recap = re.search(r"^n1 .*changed=(\d+) .*failed=0 ", text, re.MULTILINE)
        assert (recap is None, done.returncode != 0) == (fails, fails), text
        assert "Traceback" not in text
        assert TOKEN not in text
        return Run(int(recap[1]) if recap else None, text)

    def nft(self, *words: str) -> str:
        """Run nft in the namespace."""
        command = ["ip", "netns", "exec", NAMESPACE, "nft", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def state(self) -> tuple[str, str]:
        """Return all that a run could change."""
        return self.nft("-s", "list", "ruleset"), self.kubeconfig.read_text() if self.kubeconfig.exists() else ""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Yield a namespace with an API server that has one Service."""
    if os.geteuid() != 0:
        pytest.fail("network namespaces need root")
    subprocess.run(["ip", "netns", "del", NAMESPACE], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "add", NAMESPACE], check=True)
    try:
        subprocess.run(["ip", "-n", NAMESPACE, "link", "set", "lo", "up"], check=True)
        with StandIn(tmp_path / "control-plane", network_namespace=NAMESPACE, proxy_token=TOKEN) as control_plane:
            control_plane.apply(SERVICE, SLICE)
            yield Host(tmp_path, control_plane)
    finally:
        subprocess.run(["ip", "netns", "del", NAMESPACE], check=True)


def checked(host: Host, *arguments: str, before: tuple[str, ...] = ()) -> Run:
    """Run in check mode and see that nothing has changed."""
    was = host.state()
    run = host.run("--check", "--diff", *arguments, before=before)
    assert host.state() == was
    return run


def check_clean_host(host: Host) -> None:
    run = checked(host)
    assert run.changed
    assert run.added == LINES


def apply_first(host: Host) -> None:
    assert host.run().changed
    services = host.nft("list", "map", "ip", "kproxy", "services")
    assert 'elements = { 10.96.0.20 . tcp . 80 comment "shop/web:http"' in services


def apply_again(host: Host) -> None:
    was = host.state()
    assert host.run().changed == 0
    assert host.state() == was


def check_unchanged(host: Host) -> None:
    run = checked(host)
    assert (run.changed, run.added, run.removed) == (0, [], [])


def remove_element(host: Host) -> None:
    # The last endpoint, so that no other becomes unreachable with it; then some packets, to move counters.
    slots = re.findall(
        r"(10\.96\.0\.20 \. 80 \. (\d+)) : (\S+)", host.nft("list", "map", "ip", "kproxy", "endpoints-tcp")
    )
    key, _slot, host.gone = max(slots, key=lambda slot: int(slot[1]))
    host.nft("delete", "element", "ip", "kproxy", "endpoints-tcp", f"{{ {key} }}")


def check_sees_the_element(host: Host) -> None:
    run = checked(host)
    assert run.changed == 1
    assert (run.added, run.removed) == ([f"shop/web:http: endpoint {host.gone}:8080"], [])


def apply_the_element(host: Host) -> None:
    before = host.nft("-s", "list", "ruleset").splitlines()
    assert host.run().changed == 1
    after = host.nft("-s", "list", "ruleset").splitlines()
    # nft prints a set's elements on one line or on several; whichever lines differ are of this one map.
    assert all("10.96.0.20 . 80 . " in line for line in set(after) ^ set(before))
    assert host.gone in "".join(set(after) - set(before))


def add_foreign(host: Host) -> None:
    host.nft("add", "table", "inet", "foreign")
    host.nft("add", "set", "inet", "foreign", "theirs", "{ type ipv4_addr; elements = { 203.0.113.7 }; }")


def apply_beside_foreign(host: Host) -> None:
    theirs = host.nft("list", "table", "inet", "foreign")
    assert host.run().changed == 0
    assert host.nft("list", "table", "inet", "foreign") == theirs


def check_absent(host: Host) -> None:
    run = checked(host, "-e", "dataplane_state=absent")
    assert run.changed
    assert run.removed == LINES


def check_without_nft(host: Host) -> None:
    host.nft("delete", "table", "ip", "kproxy")
    run = checked(host, before=("unshare", "-m", "sh", "-c", HIDE_NFT, "sh", str(host.hidden)))
    assert "to install: nftables." in run.text
    assert run.changed
    assert run.added == LINES
    assert host.run().changed


def apply_without_api_server(host: Host) -> None:
    was = host.state()
    host.control_plane.stop()
    run = host.run(fails=True)
    assert run.text.count("no API server gave a complete answer") >= 1
    assert host.state() == was
    # Nor do credentials that lead nowhere take the place of those that did: a kproxyd lives by them.
    run = host.run("-e", "kproxy_api_servers=https://127.0.0.1:9,https://[::1]:9", fails=True)
    assert "https://127.0.0.1:9" in run.text
    assert "https://[::1]:9" in run.text
    assert host.state() == was


ACTIONS: list[tuple[str, Callable[[Host], None]]] = [
    ("--check --diff on a clean host", check_clean_host),
    ("apply", apply_first),
    ("apply", apply_again),
    ("--check --diff", check_unchanged),
    ("one service map element is removed by hand; counters have moved", remove_element),
    ("--check --diff", check_sees_the_element),
    ("apply", apply_the_element),
    ("a foreign table is added by hand", add_foreign),
    ("apply", apply_beside_foreign),
    ("--check with state absent", check_absent),
    ("--check on a host where nft is not installed", check_without_nft),
    ("apply with the API server down", apply_without_api_server),
]


def test_every_step_of_the_case_has_an_action() -> None:
    assert [step.get("run") or step.get("do") for step in STEPS] == [name for name, _action in ACTIONS]


def test_the_steps_one_after_the_other(host: Host) -> None:
    assert shutil.which("nft"), "nft is needed; ./dev installs it"
    for _name, action in ACTIONS:
        action(host)
