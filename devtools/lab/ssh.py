"""Reaching nodes: one key pair and one host key per machine, kept outside the checkout, and commands over real ssh."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from devtools.bootstrap import locked
from devtools.lab.commands import run
from devtools.lab.topology import CACHE, Lab, LabError, Node

KEYS = CACHE / "ssh"
IDENTITY = KEYS / "id_ed25519"
HOST_KEY = KEYS / "host_ed25519"
KNOWN_HOSTS = KEYS / "known_hosts"


def ensure_keys() -> None:
    """Make the keys unless they are there. All nodes share a host key, so a node made anew is still known."""
    KEYS.mkdir(parents=True, exist_ok=True)
    KEYS.chmod(0o700)
    with locked(KEYS / "lock"):
        for path in (IDENTITY, HOST_KEY):
            if not path.exists():
                run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "kproxy-lab", "-f", str(path)])
        KNOWN_HOSTS.write_text(f"10.77.0.* {HOST_KEY.with_suffix('.pub').read_text()}")


def install_keys(upper: Path) -> None:
    """Put the host key and the authorized key into a node's layer."""
    server, user = upper / "etc/ssh", upper / "root/.ssh"
    for folder in (server, user):
        folder.mkdir(parents=True)
    (upper / "root").chmod(0o700)
    shutil.copy(HOST_KEY, server / "ssh_host_ed25519_key")
    (server / "ssh_host_ed25519_key").chmod(0o600)
    shutil.copy(HOST_KEY.with_suffix(".pub"), server / "ssh_host_ed25519_key.pub")
    shutil.copy(IDENTITY.with_suffix(".pub"), user / "authorized_keys")


def proxy_command(lab: Lab) -> str:
    """Return how ssh gets into the fabric: its namespace has no way in from outside either."""
    return f"nsenter --net=/run/netns/{lab.fabric} nc -N %h %p"


def options(lab: Lab) -> list[str]:
    """Return ssh's options to reach any node of the lab."""
    settings = {
        "ProxyCommand": proxy_command(lab),
        "UserKnownHostsFile": str(KNOWN_HOSTS),
        "StrictHostKeyChecking": "yes",
        "IdentityFile": str(IDENTITY),
        "IdentitiesOnly": "yes",
        "LogLevel": "ERROR",
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def command(lab: Lab, node: Node, remote: str) -> list[str]:
    """Return the ssh command that runs a line of shell on a node; a login shell when it is empty."""
    return ["ssh", "-F", "none", *options(lab), f"root@{node.ipv4}", *([remote] if remote else [])]


def close_connections(lab: Lab) -> None:
    """End the connections that Ansible keeps between tasks; each would hold the fabric's namespace for a minute."""
    for control in lab.state.glob("ssh-*"):
        subprocess.run(["ssh", "-S", str(control), "-O", "exit", "lab"], capture_output=True, check=False)


def execute(lab: Lab, node: Node, remote: list[str], *, stdin: str | None = None) -> str:
    """Run a command on a node and return what it printed.

    Raises:
        LabError: it failed, or the node is not reachable.
    """
    line = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    ssh = command(lab, node, shlex.join(remote))
    result = subprocess.run([*ssh[:1], *line, *ssh[1:]], input=stdin or "", capture_output=True, text=True, check=False)
    if result.returncode != 0:
        output = (result.stderr + result.stdout).strip()
        raise LabError(f"{node.name}: `{shlex.join(remote)}` failed with exit code {result.returncode}: {output}")
    return result.stdout


def execute_json(lab: Lab, node: Node, remote: list[str], *, stdin: str | None = None) -> Any:
    """Run a command on a node and return the JSON it printed."""
    return json.loads(execute(lab, node, remote, stdin=stdin))
