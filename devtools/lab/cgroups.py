"""A cgroup subtree per node, on hosts with cgroup2 alone and on hybrid ones.

A node gets two groups: `loop` holds the supervising shell and `machine` the container. Without its own group the
container would take over the one `dev` was started in.
"""

from __future__ import annotations

import select
from pathlib import Path

from devtools.lab.topology import Lab, LabError, Node

PARTS = ("loop", "machine")


def hierarchies(mounts: str) -> list[Path]:
    """Return where the host's cgroup2 hierarchy is mounted and, on hybrid hosts, systemd's own v1 one after it.

    `mounts` is the text of /proc/mounts.

    Raises:
        LabError: the host has no cgroup2.
    """
    rows = [line.split() for line in mounts.splitlines()]
    unified = [Path(row[1]) for row in rows if row[2] == "cgroup2"]
    named = [Path(row[1]) for row in rows if row[2] == "cgroup" and "name=systemd" in row[3].split(",")]
    if not unified:
        raise LabError("the host has no cgroup2 mounted; boot with systemd.unified_cgroup_hierarchy=1 or hybrid")
    return unified[:1] + named[:1]


def groups(lab: Lab) -> list[Path]:
    """Return the lab's group in each hierarchy, cgroup2 first."""
    return [root / "kproxy-lab" / lab.instance for root in hierarchies(Path("/proc/mounts").read_text())]


def create(lab: Lab, node: Node) -> None:
    """Make the node's groups."""
    for group in groups(lab):
        for part in PARTS:
            (group / node.name / part).mkdir(parents=True, exist_ok=True)


def populated(lab: Lab, node: Node) -> bool:
    """Tell whether any process of the node lives."""
    try:
        events = (groups(lab)[0] / node.name / "cgroup.events").read_text()
    except FileNotFoundError:
        return False
    return "populated 1" in events


def kill(lab: Lab, node: Node, timeout: float = 10.0) -> None:
    """Kill every process of the node and wait until the last has gone.

    Raises:
        LabError: some process survived `timeout` seconds, which only one stuck in the kernel can.
    """
    group = groups(lab)[0] / node.name
    if not populated(lab, node):
        return
    with (group / "cgroup.events").open() as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        (group / "cgroup.kill").write_text("1")
        while "populated 1" in events.read():
            if not poll.poll(timeout * 1000):
                raise LabError(f"{node.name}: processes in {group} do not die")
            events.seek(0)


def remove(lab: Lab, node: Node) -> None:
    """Remove the node's groups, innermost first."""
    for group in groups(lab):
        remove_tree(group / node.name)


def remove_all(lab: Lab) -> None:
    """Remove what is left of the lab's groups; the parent goes with the last lab."""
    for group in groups(lab):
        remove_tree(group)
        if group.parent.is_dir() and not any(path.is_dir() for path in group.parent.iterdir()):
            group.parent.rmdir()


def remove_tree(group: Path) -> None:
    """Remove a group and all groups inside it."""
    if group.is_dir():
        for child in group.iterdir():
            if child.is_dir():
                remove_tree(child)
        group.rmdir()
