"""Pods on lab nodes, and dialling from pods, nodes and outside: what tests and the demo prove Services with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devtools.lab import ssh
from devtools.lab.commands import run
from devtools.lab.topology import Lab, Node

PROGRAM = ["python3", "/opt/kproxy-lab/pod.py"]
DIAL = "/opt/kproxy-lab/dial.py"
LOCAL_DIAL = Path(__file__).parent / "guest/dial.py"


@dataclass(frozen=True)
class Pod:
    """A pod to be: `host` is the last part of its addresses in the node's pod ranges, 2 to 254."""

    name: str
    host: int
    ports: tuple[tuple[str, int], ...] = (("TCP", 8080), ("UDP", 8080))

    def ipv4(self, node: Node) -> str:
        return f"10.244.{node.number}.{self.host}"

    def ipv6(self, node: Node) -> str:
        return f"fd00:10:244:{node.number}::{self.host}"

    def description(self, node: Node) -> dict[str, object]:
        """Return what the node's pod.py is told."""
        return {
            "name": self.name,
            "addresses": [self.ipv4(node), self.ipv6(node)],
            "gateways": [node.pod_gateway_ipv4, node.pod_gateway_ipv6],
            "ports": [{"protocol": protocol, "port": port} for protocol, port in self.ports],
        }


@dataclass(frozen=True)
class Dialled:
    """What a series of connections met: how often each pod answered, the clients it saw, errors by kind."""

    pods: Counter[str]
    peers: frozenset[str]
    errors: dict[str, int]


def add_pods(lab: Lab, node: Node, pods: Sequence[Pod]) -> None:
    """Start pods on a node; returns when their servers accept connections. Pods outlive a reboot of the node."""
    described = json.dumps([pod.description(node) for pod in pods])
    ssh.execute(lab, node, [*PROGRAM, "apply"], stdin=described)


def remove_pods(lab: Lab, node: Node, names: Sequence[str]) -> None:
    """End pods on a node."""
    ssh.execute(lab, node, [*PROGRAM, "remove", *names])


def pod_names(lab: Lab, node: Node) -> list[str]:
    """Return the names of a node's pods."""
    return [pod["name"] for pod in ssh.execute_json(lab, node, [*PROGRAM, "list"])]


def dial_many(
    lab: Lab, origin: Node | None, targets: Sequence[tuple[str, str, int, int]], *, pod: str | None = None
) -> list[Dialled]:
    """Dial (protocol, address, port, count) targets side by side from a node, one of its pods, or outside (None)."""
    wanted = json.dumps([list(target) for target in targets])
    if origin is None:
        inside = ["ip", "netns", "exec", lab.fabric, "python3", str(LOCAL_DIAL), "--batch"]
        seen = json.loads(run(inside, stdin=wanted))
    else:
        inside = ["ip", "netns", "exec", pod] if pod else []
        seen = ssh.execute_json(lab, origin, [*inside, "python3", DIAL, "--batch"], stdin=wanted)
    return [
        Dialled(
            pods=Counter(answer["pod"] for answer in series["answers"]),
            peers=frozenset(answer["peer"] for answer in series["answers"]),
            errors=series["errors"],
        )
        for series in seen
    ]


def dial(
    lab: Lab,
    origin: Node | None,
    address: str,
    port: int,
    *,
    pod: str | None = None,
    protocol: str = "TCP",
    count: int = 1,
) -> Dialled:
    """Dial one target, `count` times one after another."""
    (seen,) = dial_many(lab, origin, [(protocol, address, port, count)], pod=pod)
    return seen
