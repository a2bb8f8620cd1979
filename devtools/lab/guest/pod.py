"""Pods of a lab node, as the `ptp` CNI plugin would connect them: a namespace, a veth pair, routes; no bridge.

Runs on the node with its python3. `apply` reads a JSON list of pods from standard input, `remove NAME...` ends them,
`list` prints them; `run` and `clean` are what the unit kproxy-pod@NAME does.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PODS = Path("/etc/kproxy-lab/pods")
HERE = Path(__file__).resolve().parent


def interface(name: str) -> str:
    """Return the node's end of the pod's veth pair: `veth` and eight digits, as long names do not fit."""
    return f"veth{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def ip(*lines: str) -> None:
    """Run `ip` commands, one a line, stopping at the first that fails."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines) + "\n", text=True, check=True)


def connect(name: str, addresses: list[str], gateways: list[str]) -> None:
    """Make the pod's namespace and its link to the node."""
    veth = interface(name)
    ip(f"netns add {name}", f"link add {veth} type veth peer name eth0 netns {name}", f"link set {veth} up")
    inside = ["link set lo up", "link set eth0 up"]
    for address, gateway in zip(addresses, gateways):
        length, nodad = ("128", " nodad") if ":" in address else ("32", "")
        ip(f"addr add {gateway}/{length} dev {veth}{nodad}", f"route add {address}/{length} dev {veth}")
        inside += [
            f"addr add {address}/{length} dev eth0{nodad}",
            f"route add {gateway}/{length} dev eth0",
            f"route add default via {gateway} dev eth0",
        ]
    subprocess.run(["ip", "-n", name, "-batch", "-"], input="\n".join(inside) + "\n", text=True, check=True)


def clean(name: str) -> None:
    """Remove the pod's namespace and link, as far as they are there."""
    subprocess.run(["ip", "link", "del", interface(name)], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run(name: str) -> None:
    """Connect the pod and become its server."""
    pod = json.loads((PODS / f"{name}.json").read_text())
    clean(name)
    connect(name, pod["addresses"], pod["gateways"])
    server = [sys.executable, str(HERE / "echo.py"), name, json.dumps(pod["ports"])]
    os.execvp("ip", ["ip", "netns", "exec", name, *server])


def systemctl(verb: str, names: list[str]) -> None:
    """Apply a verb to the units of these pods; returns when it is done."""
    subprocess.run(["systemctl", *verb.split(), *(f"kproxy-pod@{name}.service" for name in names)], check=True)


def apply(pods: list[dict[str, Any]]) -> None:
    """Start these pods, restarting those that changed; returns when their servers accept connections."""
    PODS.mkdir(parents=True, exist_ok=True)
    changed = []
    for pod in pods:
        path, text = PODS / f"{pod['name']}.json", json.dumps(pod, sort_keys=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(pod["name"])
    names = [pod["name"] for pod in pods]
    if changed:
        systemctl("--quiet enable", changed)
        systemctl("restart", changed)
    systemctl("start", names)


def remove(names: list[str]) -> None:
    """End these pods and forget them."""
    systemctl("--quiet disable --now", names)
    for name in names:
        (PODS / f"{name}.json").unlink(missing_ok=True)


def main(argv: list[str]) -> None:
    verb, *names = argv
    if verb == "apply":
        apply(json.load(sys.stdin))
    elif verb == "remove":
        remove(names)
    elif verb == "list":
        print(json.dumps([json.loads(path.read_text()) for path in sorted(PODS.glob("*.json"))]))
    elif verb == "run":
        run(names[0])
    elif verb == "clean":
        clean(names[0])
    else:
        sys.exit(f"pod.py: no verb {verb!r}")


if __name__ == "__main__":
    main(sys.argv[1:])
