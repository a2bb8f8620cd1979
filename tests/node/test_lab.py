"""The lab itself, on two nodes: idle `up`, pods of both families, a true reboot, and a clean end after a killed run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.lab import cgroups, machines, network, pods, ssh
from devtools.lab.pods import Pod
from devtools.lab.topology import RUN, Lab, Node

GPU_A, GPU_B = Node("gpu-a"), Node("gpu-b")
WEB = Pod("web", 7, (("TCP", 80), ("UDP", 53)))


def forget(lab: Lab) -> None:
    """Remove a lab that nobody will ever use again, with its lock."""
    machines.down(lab)
    (RUN / f"{lab.instance}.lock").unlink()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    made = Lab(f"test-{os.getpid()}")
    try:
        machines.up(made, [GPU_A, GPU_B])
        yield made
    finally:
        forget(made)


def test_a_second_up_starts_nothing(lab: Lab) -> None:
    assert machines.up(lab, [GPU_A, GPU_B]) == []


def test_a_node_is_a_machine_of_its_own(lab: Lab) -> None:
    seen = ssh.execute(lab, GPU_A, ["sh", "-c", "hostname; stat -fc %T /sys/fs/cgroup /sys/fs/bpf; ip -br link"])
    name, cgroup, bpf, *links = seen.splitlines()
    assert (name, cgroup, bpf) == ("gpu-a", "cgroup2fs", "bpf_fs")
    assert [line.split("@")[0].split()[0] for line in links] == ["lo", "eth0"]


def test_a_node_has_no_way_out(lab: Lab) -> None:
    assert pods.dial(lab, GPU_A, "192.0.2.1", 80).errors == {"timeout": 1}


DIALS = [
    # from      pod     address                 port  protocol  peer that the pod sees
    (GPU_B,     None,   "10.244.21.7",          80,   "TCP",    "10.77.0.22"),
    (GPU_B,     "web",  "10.244.21.7",          53,   "UDP",    "10.244.22.7"),
    (GPU_B,     "web",  "fd00:10:244:21::7",    53,   "UDP",    "fd00:10:244:22::7"),
    (GPU_A,     None,   "fd00:10:244:21::7",    80,   "TCP",    "fd00:10:244:21::1"),
    (None,      None,   "10.244.21.7",          80,   "TCP",    "10.77.0.1"),
]  # fmt: skip


@pytest.mark.parametrize(("origin", "pod", "address", "port", "protocol", "peer"), DIALS)
def test_pods_answer(
    lab: Lab, origin: Node | None, pod: str | None, address: str, port: int, protocol: str, peer: str
) -> None:
    for node in (GPU_A, GPU_B):
        pods.add_pods(lab, node, [WEB])
    seen = pods.dial(lab, origin, address, port, pod=pod, protocol=protocol, count=3)
    assert (seen.pods, seen.peers, seen.errors) == (Counter(web=3), frozenset({peer}), {})


def test_a_closed_port_refuses(lab: Lab) -> None:
    pods.add_pods(lab, GPU_A, [WEB])
    assert pods.dial(lab, GPU_B, "10.244.21.7", 81).errors == {"refused": 1}


def test_a_reboot_finds_an_empty_kernel_and_its_pods_again(lab: Lab) -> None:
    pods.add_pods(lab, GPU_A, [WEB])
    ssh.execute(lab, GPU_A, ["nft", "add", "table", "ip", "leftover"])
    boot = ssh.execute(lab, GPU_A, ["cat", "/proc/1/stat"])
    with machines.next_boot(lab, GPU_A):
        ssh.execute(lab, GPU_A, ["systemctl", "reboot"])
    assert ssh.execute(lab, GPU_A, ["cat", "/proc/1/stat"]) != boot
    assert ssh.execute(lab, GPU_A, ["nft", "list", "tables"]) == ""
    assert pods.dial(lab, GPU_B, "10.244.21.7", 80) == pods.Dialled(Counter(web=1), frozenset({GPU_B.ipv4}), {})


def test_a_killed_lab_is_rebuilt_and_removed_without_a_trace() -> None:
    lab = Lab(f"killed-{os.getpid()}")
    try:
        machines.up(lab, [GPU_A])
        for process in processes(lab, GPU_A):
            os.kill(process, signal.SIGKILL)
        while cgroups.populated(lab, GPU_A):
            os.sched_yield()
        assert machines.up(lab, [GPU_A]) == [GPU_A]
        assert ssh.execute(lab, GPU_A, ["hostname"]) == "gpu-a\n"
    finally:
        forget(lab)
    assert not network.exists(lab.fabric)
    assert machines.leftover_nodes(lab) == []
    assert not lab.state.exists()
    assert lab.machine(GPU_A) not in Path("/proc/mounts").read_text()


def processes(lab: Lab, node: Node) -> list[int]:
    """Return the supervising loop and all processes of a node, the loop first so that it restarts nothing."""
    group = cgroups.groups(lab)[0] / node.name
    listings = [group / "loop/cgroup.procs", *sorted((group / "machine").rglob("cgroup.procs"))]
    return [int(line) for listing in listings for line in listing.read_text().split()]


def test_two_labs_side_by_side_do_not_meet(lab: Lab) -> None:
    other = Lab(f"other-{os.getpid()}")
    try:
        machines.up(other, [GPU_A])
        ssh.execute(other, GPU_A, ["touch", "/only-here"])
        found = subprocess.run(ssh.command(lab, GPU_A, "test -e /only-here"), check=False)
        assert found.returncode == 1
    finally:
        forget(other)
