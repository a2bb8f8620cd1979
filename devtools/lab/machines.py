"""Starting and ending nodes: an overlay on the shared tree, a namespace, a cgroup, systemd-nspawn.

A node is disposable: ending it kills its processes and drops its layer. Everything is found by name, so what a killed
run left behind is cleaned by the next `up` or `down`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from devtools.bootstrap import ROOT, locked
from devtools.lab import cgroups, network, rootfs, ssh
from devtools.lab.commands import run
from devtools.lab.topology import RUN, Lab, LabError, Node

LOOP = Path(__file__).parent / "nspawn-loop"
BOOT_TIMEOUT_S = 90.0
NSPAWN_LEFTOVERS = (Path("/run/systemd/nspawn/propagate"), Path("/run/systemd/nspawn/unix-export"))

INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
#: The default of 128 is used up by two labs of seven nodes, all of whose processes are this machine's root.
WANTED_INOTIFY_INSTANCES = 1024


def each(action: Callable[[Lab, Node], None], lab: Lab, members: list[Node]) -> None:
    """Do something for all nodes at once; the first failure is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=max(1, len(members))) as pool:
        for done in [pool.submit(action, lab, node) for node in members]:
            done.result()


def running(lab: Lab, node: Node) -> bool:
    """Tell whether the node has booted completely and lives."""
    return (lab.node_state(node) / "ready").exists() and cgroups.populated(lab, node)


def up(lab: Lab, members: list[Node]) -> list[Node]:
    """Bring nodes up and return those that had to be started; the others are left alone.

    Raises:
        LabError: a node did not boot; the end of its log is in the text.
    """
    if os.geteuid() != 0:
        raise LabError("the lab needs root: namespaces, mounts and containers")
    with locked(RUN / f"{lab.instance}.lock"):
        absent = [node for node in members if not running(lab, node)]
        if absent:
            allow_many_watches()
            root = rootfs.ensure_root()
            ssh.ensure_keys()
            make_state(lab)
            network.make_fabric(lab)
            each(remove, lab, absent)
            each(lambda lab, node: start(lab, node, root), lab, absent)
    return absent


def allow_many_watches() -> None:
    """Raise this machine's limit of inotify instances, never lower it: every systemd and every kproxyd takes some."""
    if int(INOTIFY_INSTANCES.read_text()) < WANTED_INOTIFY_INSTANCES:
        INOTIFY_INSTANCES.write_text(str(WANTED_INOTIFY_INSTANCES))


def down(lab: Lab) -> None:
    """Remove the lab and everything it left on the host, whatever state it is in."""
    with locked(RUN / f"{lab.instance}.lock"):
        ssh.close_connections(lab)
        each(remove, lab, leftover_nodes(lab))
        network.remove_fabric(lab)
        cgroups.remove_all(lab)
        if lab.state.is_mount():
            run(["umount", "--lazy", str(lab.state)])
        if lab.state.exists():
            shutil.rmtree(lab.state)


def make_state(lab: Lab) -> None:
    """Mount the lab's tmpfs unless it is there; a limit keeps a node gone wild from filling the host's memory."""
    lab.state.mkdir(parents=True, exist_ok=True)
    if not lab.state.is_mount():
        run(["mount", "-t", "tmpfs", "-o", "size=4G,mode=0700", "kproxy-lab", str(lab.state)])


def leftover_nodes(lab: Lab) -> list[Node]:
    """Return every node of which anything is left: state, namespace or cgroup."""
    names = {path.name for path in (lab.state / "nodes").glob("*")}
    names |= {path.name.partition(".")[2] for path in network.NAMESPACES.glob(f"{lab.fabric}.*")}
    names |= {path.name for group in cgroups.groups(lab) if group.is_dir() for path in group.iterdir() if path.is_dir()}
    return [Node(name) for name in sorted(names)]


def start(lab: Lab, node: Node, root: Path) -> None:
    """Boot one node and wait until it says that it is up."""
    state = lab.node_state(node)
    for part in ("upper", "work", "root"):
        (state / part).mkdir(parents=True)
    rootfs.install_guest(state / "upper")
    ssh.install_keys(state / "upper")
    layers = f"lowerdir={root},upperdir={state / 'upper'},workdir={state / 'work'}"
    run(["mount", "-t", "overlay", lab.machine(node), "-o", layers, str(state / "root")])
    network.connect(lab, node)
    cgroups.create(lab, node)
    with next_boot(lab, node):
        boot(lab, node)
    (state / "ready").touch()


@contextmanager
def next_boot(lab: Lab, node: Node) -> Iterator[None]:
    """Run the body, which makes the node boot, and wait for the READY=1 of its default target (sd_notify(3)).

    Raises:
        LabError: it did not come; the end of the node's log is in the text.
    """
    state = lab.node_state(node)
    path = state / "notify"
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
        notifications.bind(str(path))
        notifications.settimeout(BOOT_TIMEOUT_S)
        yield
        try:
            while b"READY=1" not in notifications.recv(4096).split(b"\n"):
                pass
        except TimeoutError:
            end = "\n".join((state / "boot.log").read_text(errors="replace").splitlines()[-20:])
            raise LabError(f"{node.name} did not boot in {BOOT_TIMEOUT_S:.0f} s; its log ends:\n{end}") from None


def boot(lab: Lab, node: Node) -> None:
    """Start the node's supervising loop in a session of its own."""
    state, machine = lab.node_state(node), lab.machine(node)
    between_boots = [sys.executable, "-m", "devtools.lab.network", lab.instance, node.name]
    groups = ":".join(str(group / node.name) for group in cgroups.groups(lab))
    arguments = [
        *("--quiet", "--boot", f"--directory={state / 'root'}", f"--machine={machine}", f"--hostname={node.name}"),
        *("--register=no", "--keep-unit", "--notify-ready=yes", "--console=pipe", "--link-journal=no"),
        *("--resolv-conf=off", "--timezone=off", f"--network-namespace-path=/run/netns/{lab.namespace(node)}"),
        # Nodes load their own programs: all capabilities, and the two calls nspawn's filter would refuse.
        *("--capability=all", "--system-call-filter=bpf", "--system-call-filter=perf_event_open"),
    ]
    environment = {
        "PATH": os.environ["PATH"],
        "LC_ALL": "C.UTF-8",
        "NOTIFY_SOCKET": str(state / "notify"),
        # A pure cgroup2 tree inside, also on a hybrid host.
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    }
    with (state / "boot.log").open("wb") as log:
        subprocess.Popen(
            [str(LOOP), shlex.join(between_boots), groups, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )


def remove(lab: Lab, node: Node) -> None:
    """End a node and remove its mounts, namespace, groups and state, as far as they are there."""
    state = lab.node_state(node)
    cgroups.kill(lab, node)
    folders = [state, *(path / lab.machine(node) for path in NSPAWN_LEFTOVERS)]
    for mount in mounts_below(Path("/proc/mounts").read_text(), folders):
        run(["umount", "--lazy", mount])
    network.disconnect(lab, node)
    cgroups.remove(lab, node)
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)


def mounts_below(mounts: str, folders: list[Path]) -> list[str]:
    """Return the mount points in or below these folders, innermost first. `mounts` is the text of /proc/mounts."""
    points = [line.split()[1] for line in mounts.splitlines()]
    return [point for point in reversed(points) if any(Path(point).is_relative_to(folder) for folder in folders)]
