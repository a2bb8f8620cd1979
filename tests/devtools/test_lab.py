"""The lab's pure parts: names, what is read from the host's files, pods from manifests, the committed inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.environment import COLLECTION, ROOT
from devtools.lab import cgroups, machines, rootfs, workload
from devtools.lab.pods import Pod
from devtools.lab.topology import NODE_NUMBERS, Lab, LabError, Node, nodes

HYBRID = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
PURE = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"
LEGACY = "cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n"


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        pytest.param(HYBRID, ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"], id="hybrid"),
        pytest.param(PURE, ["/sys/fs/cgroup"], id="cgroup2 alone"),
    ],
)
def test_hierarchies(mounts: str, found: list[str]) -> None:
    assert [str(path) for path in cgroups.hierarchies(mounts)] == found


def test_a_host_without_cgroup2_is_refused() -> None:
    with pytest.raises(LabError, match="cgroup2"):
        cgroups.hierarchies(LEGACY)


def test_mounts_below_are_innermost_first_and_of_no_neighbour() -> None:
    mounts = "a /run/lab/x/root overlay\nb /run/lab/x/root/sys sysfs\nc /run/lab/x2 tmpfs\nd / ext4\n"
    assert machines.mounts_below(mounts, [Path("/run/lab/x")]) == ["/run/lab/x/root/sys", "/run/lab/x/root"]


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ("deb http://mirror.example.org/debian bookworm main\n", ["http://mirror.example.org/debian"]),
        ("deb [arch=amd64] https://mirror.example/debian/ trixie main\n", ["https://mirror.example/debian"]),
        (
            "Types: deb\nURIs: http://mirror.example.org/debian\nSuites: bookworm\n",
            ["http://mirror.example.org/debian"],
        ),
        ("deb http://mirror.example.org/debian-security bookworm-security main\n", []),
        ("# deb http://old.example/debian sid main\n", []),
    ],
)
def test_mirrors(sources: str, found: list[str]) -> None:
    assert rootfs.mirrors(sources) == found


@pytest.mark.parametrize("instance", ["", "Lab", "a/b", "a.b", "x" * 25, "-a"])
def test_bad_instance_names_are_refused(instance: str) -> None:
    with pytest.raises(LabError):
        Lab(instance)


def test_instances_never_share_a_name() -> None:
    short, long = Lab("m"), Lab("m-cp-1")
    names = [lab.namespace(node) for lab in (short, long) for node in nodes()] + [short.fabric, long.fabric]
    assert len(set(names)) == len(names)


def test_unknown_node_is_refused_with_the_known_ones() -> None:
    with pytest.raises(LabError, match="gpu-d"):
        nodes(["gpu-e"])


def endpoint_slice(node: str | None, address: str, ports: list[dict[str, Any]], pod: str | None) -> dict[str, Any]:
    endpoint: dict[str, Any] = {"addresses": [address]}
    if node:
        endpoint["nodeName"] = node
    if pod:
        endpoint["targetRef"] = {"kind": "Pod", "name": pod}
    return {"kind": "EndpointSlice", "ports": ports, "endpoints": [endpoint]}


def test_pods_behind_joins_ports_and_families() -> None:
    objects = [
        {"kind": "Service"},
        endpoint_slice("gpu-a", "10.244.21.7", [{"port": 80}], "web"),
        endpoint_slice("gpu-a", "fd00:10:244:21::7", [{"port": 80}, {"port": 53, "protocol": "UDP"}], "web"),
        endpoint_slice("gpu-b", "10.244.22.9", [{"port": 80}], None),
        endpoint_slice(None, "192.0.2.1", [{"port": 80}], "elsewhere"),
    ]
    assert workload.pods_behind(objects) == {
        Node("gpu-a"): [Pod("web", 7, (("TCP", 80), ("UDP", 53)))],
        Node("gpu-b"): [Pod("pod-9", 9, (("TCP", 80),))],
    }


@pytest.mark.parametrize("address", ["10.244.22.7", "192.0.2.1", "fd00:10:244:21::ab"])
def test_an_endpoint_outside_of_its_node_is_refused(address: str) -> None:
    with pytest.raises(LabError, match="gpu-a"):
        workload.pods_behind([endpoint_slice("gpu-a", address, [{"port": 80}], "web")])


def test_the_examples_run_on_the_lab() -> None:
    found = workload.pods_behind(workload.load(ROOT / "examples/services"))
    assert sum(map(len, found.values())) == 9


def test_the_committed_inventory_is_the_topology() -> None:
    inventory = yaml.safe_load((COLLECTION / "inventories/lab/hosts.yml").read_text())["all"]
    hosts = {
        (group, name, variables["ansible_host"])
        for group, content in inventory["children"].items()
        for name, variables in content["hosts"].items()
    }
    assert hosts == {(Node(name).group, name, Node(name).ipv4) for name in NODE_NUMBERS}
    template = inventory["vars"]["ansible_ssh_common_args"].replace("{{ lab_instance }}", "lab")
    assert f"nsenter --net=/run/netns/{Lab().fabric} nc" in template
    assert f"ControlPath={Lab().state}/" in template
