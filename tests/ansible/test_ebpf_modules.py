"""The modules `ebpf` and `bpf_info` on a real kernel: what they change, show, leave alone and refuse.

They run as Ansible runs them, in the network namespace of a node that has a client and a pod. Whatever they refuse, the
node forwards as it did before: here by the tables of nftables.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_probe
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import mount_point
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from tests.module_run import run_module
from tests.packets.ebpf.fabric import pass_program
from tests.packets.ebpf.one_node import CLUSTER_IP, NODE, POD, World

SERVICE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"namespace": "shop", "name": "web"},
    "spec": {
        "type": "NodePort",
        "clusterIP": CLUSTER_IP[4],
        "clusterIPs": [CLUSTER_IP[4]],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}],
    },
}
SECOND = "10.244.1.6"
LINES = [
    f"shop/web:http: {CLUSTER_IP[4]}:80/TCP dnat",
    "shop/web:http: node:30080 (IPv4)/TCP dnat",
    f"shop/web:http: endpoint {POD[4]}:8080",
]


def slice_of(*endpoints: str) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}} for ip in endpoints],
    }


class Host:
    """The node as the modules see it, and a client that tells whether it forwards."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = world.backend.plane.root
        self._server = world.serve(world.pod, POD[4], 8080, socket.SOCK_STREAM)

    def run(self, name: str, *before: str, **options: Any) -> dict[str, Any]:
        """Run a module in the node's network namespace; `before` starts it."""
        arguments = {"directory": self.directory, "_ansible_diff": True, **options}
        return run_module(name, arguments, self.world.node.joiner(), before)

    def ebpf(self, *objects: dict[str, Any], check: bool = False, **options: Any) -> dict[str, Any]:
        """Run the module `ebpf` on objects, or with state absent; it must not fail."""
        result = self.run("ebpf", **self.options(*objects), _ansible_check_mode=check, **options)
        assert not result.get("failed"), result
        return result

    def options(self, *objects: dict[str, Any]) -> dict[str, Any]:
        common = {"node_name": "n1", "cgroup": self.world.cgroup.path}
        if not objects:
            return {**common, "state": "absent"}
        config = {"clusterCIDR": "10.244.0.0/16", "nodeIPs": [NODE[4]]}
        return {**common, "objects": list(objects), "config": config}

    def refused(self, *before: str, **options: Any) -> str:
        """Run the module `ebpf` where it must fail; returns what it says."""
        result = self.run("ebpf", *before, **{**self.options(SERVICE, slice_of(POD[4])), **options})
        assert result.get("failed"), result
        return str(result["msg"])

    def forwards(self) -> bool:
        """Tell whether an outsider's connection to the NodePort arrives."""
        with self.world.client_socket(self.world.client, 4, socket.SOCK_STREAM) as client:
            if client.connect_ex((NODE[4], 30080)) != 0:
                return False
            self._server.accept()[0].close()
            return True

    def serve_by_nftables(self) -> None:
        """Serve as a node does before it is switched to eBPF."""
        with self.world.node.entered():
            engine = Engine(self.world.engine.config, NftablesBackend())
            engine.apply([Upsert(obj) for one in (SERVICE, slice_of(POD[4])) if (obj := parse(one)) is not None])
            engine.sync()

    def pins(self) -> list[str]:
        """Return all that is pinned, by path."""
        return sorted(os.path.join(folder, name) for folder, _, names in os.walk(self.directory) for name in names)

    def state(self) -> tuple[list[str], dict[str, dict[bytes, bytes]], str]:
        """Return all that a run could change."""
        pinned = self.pins()
        plane = self.world.backend.plane
        if pinned:
            plane.adopt()
        held = plane.read(tuple(plane.maps.maps)) if pinned else {}
        return pinned, held, self.world.node.run(["nft", "list", "ruleset"])


def lines(result: dict[str, Any], side: str) -> list[str]:
    return str(result["diff"][side]).splitlines()


@pytest.fixture
def host() -> Iterator[Host]:
    world = World()
    try:
        yield Host(world)
    finally:
        world.close()


def test_present_again_changed_and_absent(host: Host) -> None:
    """Check mode writes nothing and says what will come; the diff names Services; a second run changes nothing."""
    before = host.state()
    check = host.ebpf(SERVICE, slice_of(POD[4]), check=True)
    assert (check["changed"], lines(check, "before"), lines(check, "after")) == (True, [], LINES)
    assert host.state() == before
    assert not host.forwards()

    first = host.ebpf(SERVICE, slice_of(POD[4]))
    assert (first["changed"], first["frontends"], first["diff"]) == (True, 2, check["diff"])
    assert host.forwards()

    was = host.state()
    again = host.ebpf(SERVICE, slice_of(POD[4]))
    assert (again["changed"], again["elements"]) == (False, 0)
    assert (lines(again, "before"), lines(again, "after")) == ([], [])
    assert host.state() == was

    more = host.ebpf(SERVICE, slice_of(POD[4], SECOND), check=True)
    assert (more["changed"], lines(more, "before")) == (True, [])
    assert lines(more, "after") == [f"shop/web:http: endpoint {SECOND}:8080"]
    assert more["endpoints"]["added"] == [f"shop/web:http {SECOND}:8080"]
    assert host.state() == was

    moved = host.ebpf(SERVICE, slice_of(SECOND))
    assert moved["endpoints"]["moved"] == [f"shop/web:http {POD[4]}:8080 -> {SECOND}:8080"]
    assert not host.ebpf(SERVICE, slice_of(SECOND))["changed"]
    host.ebpf(SERVICE, slice_of(POD[4]))

    was = host.state()
    check = host.ebpf(check=True)
    # The maps hold numbers for service ports and no names.
    numbered = [line.replace("shop/web:http", "number 1") for line in LINES]
    assert (check["changed"], lines(check, "before"), lines(check, "after")) == (True, numbered, [])
    assert host.state() == was
    assert host.ebpf()["changed"]
    assert host.pins() == []
    assert not host.forwards()
    assert not host.ebpf()["changed"]


def test_what_others_removed_is_put_back(host: Host) -> None:
    host.ebpf(SERVICE, slice_of(POD[4]))
    plane = host.world.backend.plane
    plane.adopt()
    was = plane.read(("frontends4", "slots4"))
    plane.maps["slots4"].delete(list(was["slots4"]))
    check = host.ebpf(SERVICE, slice_of(POD[4]), check=True)
    assert check["changed"]
    assert lines(check, "after") == [f"shop/web:http: endpoint {POD[4]}:8080"]
    assert host.ebpf(SERVICE, slice_of(POD[4]))["elements"] == 1
    assert plane.read(("frontends4", "slots4")) == was

    link = os.path.join(plane.directory, "links", "cgroup_connect4")
    os.unlink(link)
    assert host.ebpf(SERVICE, slice_of(POD[4]), check=True)["changed"]
    assert not os.path.exists(link)
    assert host.ebpf(SERVICE, slice_of(POD[4]))["changed"]
    assert os.path.exists(link)
    assert not host.ebpf(SERVICE, slice_of(POD[4]))["changed"]


def test_info_reads_back_what_is_there(host: Host) -> None:
    empty = host.run("bpf_info")
    assert (empty["changed"], empty["hooks"], empty["frontends"]) == (False, {}, [])
    assert empty["capabilities"]["socket_hooks"]

    host.ebpf(SERVICE, slice_of(POD[4], SECOND))
    was = host.state()
    info = host.run("bpf_info")
    assert host.state() == was
    assert all(hook["attached"] for hook in info["hooks"].values())
    assert {"cgroup_connect4", "cgroup_post_bind6"} < set(info["hooks"])
    assert info["maps"]["frontends4"]["entries"] == 2
    assert info["maps"]["frontends4"]["room"] >= 2
    shown = {one["address"]: one for one in info["frontends"]}
    assert sorted(shown) == [f"{CLUSTER_IP[4]}:80/TCP", "node:30080 (IPv4)/TCP"]
    for one in shown.values():
        assert (one["verdict"], one["endpoints"]) == ("dnat", [f"{POD[4]}:8080", f"{SECOND}:8080"])

    # Nobody serves: the refusal is counted under its reason.
    host.ebpf(SERVICE, slice_of())
    assert not host.forwards()
    assert host.run("bpf_info")["reasons"]["no-endpoint"] >= 1


def test_xdp_and_forwarding_are_changed_once_and_read_back(host: Host) -> None:
    local = slice_of(POD[4])
    local["endpoints"][0]["nodeName"] = "n1"
    objects = SERVICE, local
    host.ebpf(*objects)
    options: dict[str, Any] = {"xdp": "generic", "xdp_devices": ["up*"], "forwarding": "dsr-ipip"}
    assert host.ebpf(*objects, check=True, **options)["changed"]
    assert host.run("bpf_info")["xdp"]["devices"] == {}
    result = host.ebpf(*objects, **options)
    assert (result["changed"], result["problems"]) == (True, [])
    assert not host.ebpf(*objects, **options)["changed"]
    info = host.run("bpf_info")
    assert (info["xdp"]["devices"], info["forwarding"]) == ({"up0": "generic"}, "dsr-ipip")
    assert host.forwards()
    assert host.run("bpf_info")["xdp"]["packets"]["by-tc"] > 0

    # Somebody else's program: warned about, left alone, and no reason to change anything with every run.
    host.ebpf(*objects)
    assert host.run("bpf_info")["xdp"]["devices"] == {}
    foreign = pass_program("their_filter")
    with host.world.node.entered():
        link = bpf.link_create(foreign, socket.if_nametoindex("up0"), 37, 1 << 1)
    os.close(foreign)
    result = host.ebpf(*objects, **options)
    assert [problem for problem in result["problems"] if "up0 is held by another program, their_filter" in problem]
    assert len(result["warnings"]) == len(result["problems"]) == 1
    assert not host.ebpf(*objects, **options)["changed"]
    assert host.forwards()
    os.close(link)
    assert host.ebpf(*objects, **options)["changed"]
    assert host.run("bpf_info")["xdp"]["devices"] == {"up0": "generic"}


def test_a_device_that_refuses_a_mode_is_served_by_tc_and_changes_nothing_again(host: Host) -> None:
    objects = SERVICE, slice_of(POD[4])
    options: dict[str, Any] = {"xdp": "native", "xdp_devices": ["dull0"]}
    # A bridge has no driver that could run a program.
    host.world.node.ip(["link add dull0 type bridge", "link set dull0 up"])
    first, again = (host.ebpf(*objects, **options) for _ in range(2))
    assert (first["changed"], again["changed"]) == (True, False)
    for result in (first, again):
        (problem,) = result["problems"]
        assert problem.startswith("dull0 takes no native XDP program: packets that come in by dull0 are served by tc")
    assert host.run("bpf_info")["xdp"]["devices"] == {}
    assert host.forwards()
    # Another mode has not been refused.
    assert host.ebpf(*objects, **{**options, "xdp": "auto"})["changed"]
    assert host.run("bpf_info")["xdp"]["devices"] == {"dull0": "generic"}


def test_an_excluded_device_is_changed_once_and_read_back(host: Host) -> None:
    objects = SERVICE, slice_of(POD[4])
    excluded: dict[str, Any] = {"excluded_devices": ["up*"]}
    everywhere = {"lo": True, "pod0": True, "up0": True}
    host.ebpf(*objects)
    assert host.run("bpf_info")["devices"] == everywhere
    assert host.ebpf(*objects, check=True, **excluded)["changed"]
    assert host.run("bpf_info")["devices"] == everywhere
    result = host.ebpf(*objects, **excluded)
    assert (result["changed"], result["problems"]) == (True, [])
    assert host.run("bpf_info")["devices"] == {**everywhere, "up0": False}
    assert not host.ebpf(*objects, **excluded)["changed"]
    assert not host.forwards()

    # No kproxyd runs here that would have followed a device which comes later.
    host.world.node.ip(["link add late0 type bridge"])
    assert host.run("bpf_info")["devices"]["late0"] is False
    assert host.ebpf(*objects, check=True)["changed"]
    assert host.ebpf(*objects)["changed"]
    assert host.run("bpf_info")["devices"] == {**everywhere, "late0": True}
    assert host.forwards()
    assert not host.ebpf(*objects)["changed"]


def test_one_bad_object_costs_only_itself(host: Host) -> None:
    spec = {"clusterIP": "10.96.0.300", "ports": []}
    bad = {**SERVICE, "metadata": {"namespace": "shop", "name": "old"}, "spec": spec}
    result = host.ebpf(SERVICE, slice_of(POD[4]), bad)
    assert host.forwards()
    assert len(result["refused"]) == 1
    assert result["refused"][0].startswith("Service shop/old: ")


def test_a_source_is_needed(host: Host) -> None:
    result = host.run("ebpf", node_name="n1")
    assert result["failed"]
    assert "kubeconfig" in result["msg"]
    assert host.pins() == []


@contextlib.contextmanager
def pinned_map(path: str, value_size: int) -> Iterator[None]:
    """Pin a map of somebody else, or of another time, where one of ours goes."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = bpf.map_create("foreign", 1, 8, value_size, 16)
    bpf.pin(descriptor, path)
    os.close(descriptor)
    yield
    os.unlink(path)


NO_CGROUP2 = 'grep -o "[^ ]* cgroup2 " /proc/self/mounts | while read -r path _; do umount -l "$path"; done; exec "$@"'


def test_a_bpf_file_system_is_needed(host: Host, tmp_path: Path) -> None:
    host.serve_by_nftables()
    message = host.refused(directory=str(tmp_path / "kproxy"))
    assert message == f"{tmp_path} is not a BPF file system: mount -t bpf bpf {tmp_path}"
    assert list(tmp_path.iterdir()) == []
    assert host.forwards()


def test_cgroup2_is_needed(host: Host, tmp_path: Path) -> None:
    host.serve_by_nftables()
    message = host.refused("unshare", "-m", "sh", "-c", NO_CGROUP2, "sh")
    assert "no cgroup2 mount in /proc/self/" in message
    assert "boot with systemd.unified_cgroup_hierarchy=1" in message
    assert host.pins() == []
    message = host.refused(cgroup=str(tmp_path))
    assert message == f"{tmp_path} is no cgroup2 directory"
    message = host.refused(cgroup=f"{mount_point()}/nobody")
    assert "No such file or directory" in message
    assert f"{mount_point()}/nobody" in message
    assert host.pins() == []
    assert host.forwards()


def test_the_right_to_load_programs_is_needed(host: Host) -> None:
    host.serve_by_nftables()
    rights = ["setpriv", "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-bpf,-sys_admin"]
    message = host.refused(*rights)
    assert "bpf(2) is not permitted" in message
    assert "CAP_BPF" in message
    assert host.pins() == []
    assert host.forwards()


def test_a_hook_that_the_kernel_lacks_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.serve_by_nftables()
    monkeypatch.setattr(bpf_probe, "_loads", lambda *_: False)
    with host.world.node.entered():
        backend = EbpfBackend(options=host.world.backend.options)
        engine = Engine(host.world.engine.config, backend)
        with pytest.raises(CommitError, match=r"missing here: cgroup socket address hooks \(Linux 5.8\)"):
            engine.sync()
    assert host.pins() == []
    assert host.forwards()


def test_a_pinned_map_of_another_layout_is_refused(host: Host) -> None:
    host.serve_by_nftables()
    plane = host.world.backend.plane
    path = os.path.join(plane.directory, "maps_0", "frontends4")
    with pinned_map(path, value_size=64):
        message = host.refused()
        assert message.startswith(f"{path}: pinned map has type 1, key 8, value 64 bytes")
        assert f"value {layout.SIZES['frontends4'][1]} are needed" in message
        assert host.pins() == [path]
    assert host.forwards()


def test_a_foreign_program_on_our_link_is_left_alone(host: Host) -> None:
    host.ebpf(SERVICE, slice_of(POD[4]))
    pin = os.path.join(host.world.backend.plane.directory, "links", "cgroup_connect4")
    link = bpf.get_pinned(pin)
    allow = bytes.fromhex("b7000000010000009500000000000000")
    foreign = bpf.program_load("intruder", 18, 10, allow, b"GPL")
    number = bpf.program_info(foreign).number
    bpf.link_update(link, foreign)
    os.close(foreign)
    was = host.pins()
    message = host.refused()
    assert message == f"{pin} holds program intruder, not kp_connect4"
    assert (bpf.link_info(link).program, host.pins()) == (number, was)
    os.close(link)
    assert host.forwards()


def test_what_does_not_fit_is_refused_as_a_whole(host: Host) -> None:
    host.ebpf(SERVICE, slice_of(POD[4]))
    was = host.state()
    # A Maglev table for each endpoint set, in less memory than one of them takes.
    tables = {"algorithm": "maglev", "maglev_table_size": 65521, "maglev_memory": 1}
    message = host.refused(objects=[SERVICE, slice_of(POD[4], SECOND)], **tables)
    assert "need" in message
    assert "allowed" in message
    assert host.state() == was
    assert host.forwards()
