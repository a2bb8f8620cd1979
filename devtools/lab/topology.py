"""What a lab consists of: names and addresses, derived from nothing but the instance and the node's name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# The last octet of a node's address is also its number in every other address range.
NODE_NUMBERS = {"cp-1": 11, "cp-2": 12, "cp-3": 13, "gpu-a": 21, "gpu-b": 22, "gpu-c": 23, "gpu-d": 24}
DEFAULT_INSTANCE = "lab"
CACHE = Path("/var/cache/kproxy-lab")
RUN = Path("/run/kproxy-lab")

FABRIC_IPV4 = "10.77.0.1"
FABRIC_IPV6 = "fd00:77::1"


class LabError(Exception):
    """The lab cannot do what was asked; the text says what to do next."""


@dataclass(frozen=True)
class Node:
    """One machine of the lab and the addresses that follow from its number."""

    name: str

    @property
    def number(self) -> int:
        return NODE_NUMBERS[self.name]

    @property
    def ipv4(self) -> str:
        return f"10.77.0.{self.number}"

    @property
    def ipv6(self) -> str:
        return f"fd00:77::{self.number}"

    @property
    def pod_cidr_ipv4(self) -> str:
        return f"10.244.{self.number}.0/24"

    @property
    def pod_cidr_ipv6(self) -> str:
        return f"fd00:10:244:{self.number}::/64"

    @property
    def pod_gateway_ipv4(self) -> str:
        return f"10.244.{self.number}.1"

    @property
    def pod_gateway_ipv6(self) -> str:
        return f"fd00:10:244:{self.number}::1"

    @property
    def group(self) -> str:
        """The inventory group."""
        return "control-plane" if self.name.startswith("cp-") else "gpu-nodes"


@dataclass(frozen=True)
class Lab:
    """One instance: labs of different instances share addresses but no namespace, so they never meet."""

    instance: str = DEFAULT_INSTANCE

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", self.instance):
            raise LabError(f"lab instance {self.instance!r}: use up to 24 lower-case letters, digits and hyphens")

    @classmethod
    def from_environment(cls) -> Lab:
        """Return the lab that KPROXY_LAB names; by default the one called `lab`."""
        return cls(os.environ.get("KPROXY_LAB") or DEFAULT_INSTANCE)

    @property
    def state(self) -> Path:
        """Overlays, logs and sockets: on a tmpfs, so nothing outlives the machine."""
        return RUN / self.instance

    @property
    def fabric(self) -> str:
        """The network namespace with the bridge. It has no way out."""
        return f"kproxy-{self.instance}"

    def namespace(self, node: Node) -> str:
        """The node's network namespace. The dot keeps instances apart whose names begin alike."""
        return f"{self.fabric}.{node.name}"

    def machine(self, node: Node) -> str:
        """The node's name among all containers of the host."""
        return f"kproxy-{self.instance}-{node.name}"

    def node_state(self, node: Node) -> Path:
        return self.state / "nodes" / node.name


def nodes(names: list[str] | None = None) -> list[Node]:
    """Return the nodes of these names, all of them by default.

    Raises:
        LabError: a name that is no node's.
    """
    for name in names or []:
        if name not in NODE_NUMBERS:
            raise LabError(f"there is no node {name!r}; the nodes are {', '.join(NODE_NUMBERS)}")
    return [Node(name) for name in names or NODE_NUMBERS]
