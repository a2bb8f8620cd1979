"""`./dev lab`: seven nodes on one machine, each with its own systemd, sshd, network namespace, cgroup2 and bpffs."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from devtools.bootstrap import ROOT
from devtools.lab import machines, pods, ssh, workload
from devtools.lab.topology import Lab, LabError, nodes


def parser() -> argparse.ArgumentParser:
    """Return the command line's description."""
    result = argparse.ArgumentParser(prog="./dev lab", description=__doc__)
    result.add_argument("--instance", help="name of the lab, for several side by side (default: $KPROXY_LAB or lab)")
    verbs = result.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="build and start the nodes; those that run are left alone")
    up.add_argument("node", nargs="*", help="only these nodes")
    up.add_argument("--json", action="store_true", help="print how to reach the nodes, in the form molecule reads")
    verbs.add_parser("down", help="remove the lab and all it left on the host")
    pod = verbs.add_parser("pods", help="start the pods behind the EndpointSlices of a folder of manifests")
    pod.add_argument("folder", type=Path, nargs="?", default=ROOT / "examples/services")
    shell = verbs.add_parser("ssh", help="a shell on a node, or one command")
    shell.add_argument("node")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    verbs.add_parser("status", help="what runs where")
    return result


def up(lab: Lab, names: list[str], as_json: bool) -> int:
    """Start nodes and say how long it took, or how to reach them."""
    begin = time.monotonic()
    started = machines.up(lab, nodes(names))
    if as_json:
        reach = {"user": "root", "port": 22, "identity_file": str(ssh.IDENTITY)}
        print(json.dumps([{"instance": node.name, "address": node.ipv4, **reach} for node in nodes(names)]))
        return 0
    running = len(nodes(names)) - len(started)
    print(f"lab {lab.instance}: {len(started)} nodes started, {running} already up, {time.monotonic() - begin:.1f} s")
    return 0


def start_pods(lab: Lab, folder: Path) -> int:
    """Start pods and say how many there are."""
    objects = workload.load(folder)
    if not objects:
        raise LabError(f"{folder} is no folder with manifests (*.yaml)")
    members = [node for node in nodes() if machines.running(lab, node)]
    if not members:
        raise LabError(f"no node of lab {lab.instance} is up; start them by: ./dev lab up")
    print(f"lab {lab.instance}: {workload.start(lab, objects, members)} pods run")
    return 0


def shell(lab: Lab, name: str, command: list[str]) -> int:
    """Become ssh."""
    (node,) = nodes([name])
    if not machines.running(lab, node):
        raise LabError(f"{name} is not up; start it by: ./dev lab up {name}")
    # Words are joined by spaces, as ssh itself does, so that `./dev lab ssh gpu-a 'a; b'` means what it says.
    line = ssh.command(lab, node, " ".join(command[1:] if command[:1] == ["--"] else command))
    os.execvp(line[0], line)


def status(lab: Lab) -> int:
    """Print one line per node; exit code 0 when all are up."""
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda node: pods.pod_names(lab, node) if machines.running(lab, node) else None, nodes()))
    print(f"{'NODE':<8}{'STATE':<7}{'ADDRESSES':<24}{'POD RANGES':<40}PODS")
    for node, names in zip(nodes(), found, strict=True):
        state = "down" if names is None else "up"
        ranges = f"{node.pod_cidr_ipv4} {node.pod_cidr_ipv6}"
        line = f"{node.name:<8}{state:<7}{node.ipv4 + ' ' + node.ipv6:<24}{ranges:<40}{' '.join(names or [])}"
        print(line.rstrip())
    return 1 if None in found else 0


def main(argv: list[str]) -> int:
    """Run one lab command."""
    arguments = parser().parse_args(argv)
    try:
        lab = Lab(arguments.instance) if arguments.instance else Lab.from_environment()
        if arguments.verb == "up":
            return up(lab, arguments.node, arguments.json)
        if arguments.verb == "down":
            machines.down(lab)
            return 0
        if arguments.verb == "pods":
            return start_pods(lab, arguments.folder)
        if arguments.verb == "ssh":
            return shell(lab, arguments.node, arguments.command)
        return status(lab)
    except LabError as error:
        print(f"dev lab: {error}", file=sys.stderr)
        return 1
