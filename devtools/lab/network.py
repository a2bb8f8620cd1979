"""The fabric (a bridge in a namespace with no way out) and each node's namespace on it.

Also run as a program between two boots of a node: a reboot must find an empty kernel, so the namespace is made anew.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from devtools.lab.commands import ip_batch, run, succeeds
from devtools.lab.topology import FABRIC_IPV4, FABRIC_IPV6, NODE_NUMBERS, Lab, Node

NAMESPACES = Path("/run/netns")


def exists(namespace: str) -> bool:
    """Tell whether a network namespace of this name is there."""
    return (NAMESPACES / namespace).exists()


def make_fabric(lab: Lab) -> None:
    """Make the bridge's namespace unless it is there. Only nodes are connected to it, and it does not forward."""
    if exists(lab.fabric):
        return
    run(["ip", "netns", "add", lab.fabric])
    ip_batch(
        lab.fabric,
        [
            "link set lo up",
            "link add br0 type bridge forward_delay 0",
            "link set br0 up",
            f"addr add {FABRIC_IPV4}/24 dev br0",
            f"addr add {FABRIC_IPV6}/64 dev br0 nodad",
            *(f"route add {pods} via {via}" for pods, via in pod_routes(list(NODE_NUMBERS))),
        ],
    )


def pod_routes(names: list[str]) -> list[tuple[str, str]]:
    """Return (pod range, next hop) of these nodes, both families: what a routed CNI would install."""
    members = [Node(name) for name in names]
    routes = [(node.pod_cidr_ipv4, node.ipv4) for node in members]
    return routes + [(node.pod_cidr_ipv6, node.ipv6) for node in members]


def connect(lab: Lab, node: Node) -> None:
    """Make the node's namespace anew and plug it into the fabric.

    The default route leads to the fabric, which drops: without one, connecting to a virtual address would fail before
    any rule could translate it.
    """
    disconnect(lab, node)
    namespace, port = lab.namespace(node), f"v{node.number}"
    run(["ip", "netns", "add", namespace])
    ip_batch(
        lab.fabric,
        [
            # A machine keeps its address over a reboot, and its neighbours count on that.
            f"link add {port} type veth peer name eth0 address 02:00:0a:4d:00:{node.number:02x} netns {namespace}",
            f"link set {port} master br0 up",
        ],
    )
    ip_batch(
        namespace,
        [
            "link set lo up",
            f"addr add {node.ipv4}/24 dev eth0",
            f"addr add {node.ipv6}/64 dev eth0 nodad",
            "link set eth0 up",
            f"route add default via {FABRIC_IPV4}",
            f"route add default via {FABRIC_IPV6}",
            *(f"route add {pods} via {via}" for pods, via in pod_routes([n for n in NODE_NUMBERS if n != node.name])),
        ],
    )
    forwarding = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]
    run(["ip", "netns", "exec", namespace, "sysctl", "-qw", *forwarding])


def disconnect(lab: Lab, node: Node) -> None:
    """Remove the node's namespace, if any.

    The link goes first and by itself: namespaces are torn down in the background, and a new one could not be plugged
    in while the old port's name is taken.
    """
    if exists(lab.fabric):
        succeeds(["ip", "-n", lab.fabric, "link", "del", f"v{node.number}"])
    if exists(lab.namespace(node)):
        run(["ip", "netns", "del", lab.namespace(node)])


def remove_fabric(lab: Lab) -> None:
    """Remove the bridge's namespace, if any, and end what still runs in it, such as the demo's API server."""
    if exists(lab.fabric):
        for pid in run(["ip", "netns", "pids", lab.fabric]).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        succeeds(["ip", "-n", lab.fabric, "link", "del", "br0"])
        run(["ip", "netns", "del", lab.fabric])


if __name__ == "__main__":
    connect(Lab(sys.argv[1]), Node(sys.argv[2]))
