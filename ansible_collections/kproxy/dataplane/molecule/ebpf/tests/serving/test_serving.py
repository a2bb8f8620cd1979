"""What the eBPF backend promises of each node: its programs in force, nothing in nftables, connections that arrive.

The expected endpoints are those of the scenario's manifests, not what the product says.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[7]
LINKS = "/sys/fs/bpf/kproxy/v*/links"
# With 60 even draws from three endpoints, one stays undrawn in fewer than one run of ten thousand million.
DRAWS = 60
WEB = frozenset({"web-1", "web-2", "web-3"})
NODES = {"gpu-a": ("10.77.0.21", "fd00:77::21"), "gpu-b": ("10.77.0.22", "fd00:77::22")}
PODS = {"gpu-a": "web-1", "gpu-b": "web-2"}
POD_ADDRESSES = {"web-1": "10.244.21.10", "web-2": "10.244.22.10"}
FABRIC = "10.77.0.1"


class Target(NamedTuple):
    """What a client dials, and who may answer. one: they stay with one pod."""

    name: str
    protocol: str
    address: str
    port: int
    pods: frozenset[str] = WEB
    one: bool = False


TARGETS = tuple(
    Target(f"{kind}-{protocol}-ipv{4 if '.' in address else 6}", protocol, address, port)
    for protocol, port, node_port in (("TCP", 80, 30080), ("UDP", 53, 30053))
    for kind, address in (
        ("cluster-ip", "10.96.1.10"),
        ("cluster-ip", "fd00:10:96::110"),
        ("external-ip", "203.0.113.10"),
        ("external-ip", "2001:db8:113::10"),
        ("load-balancer", "203.0.113.20"),
        ("load-balancer", "2001:db8:113::20"),
    )
) + (
    *(
        Target(f"node-port-{node}-{protocol}-ipv{4 if '.' in address else 6}", protocol, address, port)
        for node, addresses in NODES.items()
        for address in addresses
        for protocol, port in (("TCP", 30080), ("UDP", 30053))
    ),
    Target("affinity", "TCP", "10.96.1.11", 80, frozenset({"web-1", "web-2"}), one=True),
    Target("local-policy", "TCP", "10.96.1.12", 80, frozenset({"web-2"})),
    Target("no-endpoint", "TCP", "10.96.1.13", 80, frozenset()),
    Target("undefined-port", "TCP", "10.96.1.10", 81, frozenset()),
)


def batch(targets: tuple[Target, ...]) -> str:
    return json.dumps([[one.protocol, one.address, one.port, DRAWS] for one in targets])


@cache
def dial_all(host: Host, targets: tuple[Target, ...], pod: str) -> list[dict[str, Any]]:
    """Dial from a node or from a pod on it; once per origin, as reaching a node takes longest."""
    where = f"ip netns exec {pod} " if pod else ""
    command = f"echo '{batch(targets)}' | {where}python3 /opt/kproxy-lab/dial.py --batch"
    seen: list[dict[str, Any]] = json.loads(host.check_output(command))
    return seen


def check(seen: dict[str, Any], target: Target) -> None:
    """Compare who answered with who should have."""
    answered = {answer["pod"] for answer in seen["answers"]}
    if not target.pods:
        assert set(seen["errors"]) == {"refused"}
        return
    assert seen["errors"] == {}
    if target.one:
        assert len(answered) == 1
        assert answered <= target.pods
    else:
        assert answered == target.pods


def name(host: Host) -> str:
    found: str = host.check_output("hostname")
    return found


def in_nftables(host: Host) -> list[str]:
    """Return whose the elements of nftables' maps of Services are, of both families."""
    found: list[str] = []
    for family in ("ip", "ip6"):
        listing = host.run(f"nft --json list map {family} kproxy services")
        for item in json.loads(listing.stdout)["nftables"] if listing.succeeded else []:
            found += [key["elem"]["comment"] for key, _verdict in item.get("map", {}).get("elem", [])]
    return found


def carried_by(host: Host) -> dict[str, int]:
    status = json.loads(host.check_output("kproxyctl status -o json"))
    assert status["inStep"]
    found: dict[str, int] = status["carriedBy"]
    return found


def test_no_chain_of_kube_proxy(host: Host) -> None:
    for command in ("iptables-legacy-save", "ip6tables-legacy-save", "iptables-nft-save", "nft list ruleset"):
        assert re.findall(r"KUBE-\S+|table \S+ kube-proxy", host.check_output(command)) == []


def test_no_service_in_nftables(host: Host) -> None:
    assert in_nftables(host) == []
    assert "dnat" not in host.check_output("nft list ruleset")
    carriers = carried_by(host)
    assert set(carriers) == {"ebpf"}
    assert carriers["ebpf"] > 0


def test_the_kernel_runs_our_programs_on_the_cgroup(host: Host) -> None:
    attached = json.loads(host.check_output("bpftool --json cgroup show /sys/fs/cgroup"))
    ours = sorted(one["name"] for one in attached if one["name"].startswith("kp_"))
    hooks = ("connect", "sendmsg", "recvmsg", "getpeername", "post_bind")
    assert ours == sorted(["kp_sock_release", *(f"kp_{hook}{family}" for hook in hooks for family in (4, 6))])


def test_every_device_has_a_link_each_way(host: Host) -> None:
    devices = json.loads(host.check_output("ip -json link show"))
    wanted = {
        f"tcx_{way}_{device['ifindex']}"
        for device in devices
        for way in ("ingress", "egress")
        # What the node sends to itself needs no translation on the way in.
        if (device["ifname"], way) != ("lo", "ingress")
    }
    pinned = set(host.check_output(f"ls {LINKS}").split())
    assert {one for one in pinned if one.startswith("tcx_")} == wanted
    calls = ("connect", "sendmsg", "recvmsg", "getpeername", "post_bind")
    hooks = {f"cgroup_{call}{family}" for call in calls for family in "46"} | {"cgroup_sock_release"}
    assert {one for one in pinned if one.startswith("cgroup_")} == hooks


@pytest.mark.parametrize("target", TARGETS, ids=[one.name for one in TARGETS])
@pytest.mark.parametrize("origin", ["node", "pod"])
def test_who_answers(host: Host, origin: str, target: Target) -> None:
    pod = PODS[name(host)] if origin == "pod" else ""
    check(dial_all(host, TARGETS, pod)[TARGETS.index(target)], target)


def test_who_answers_outsiders(host: Host) -> None:
    mine = tuple(one for one in TARGETS if one.address in NODES[name(host)] and ":" not in one.address)
    command = ["ip", "netns", "exec", f"kproxy-{os.environ['KPROXY_LAB']}", "python3"]
    done = subprocess.run(
        [*command, str(ROOT / "devtools/lab/guest/dial.py"), "--batch"],
        input=batch(mine),
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(mine) == 2
    for target, seen in zip(mine, json.loads(done.stdout), strict=True):
        check(seen, target)


def test_the_local_policy_keeps_the_client_and_the_node(host: Host) -> None:
    here = name(host)
    peer = next(node for node in NODES if node != here)
    target = Target("local-node-port", "TCP", NODES[peer][0], 30081, frozenset({"web-2"}))
    (seen,) = dial_all(host, (target,), "")
    if peer == "gpu-a":
        # It runs no pod of this Service.
        assert (seen["answers"], seen["errors"]) == ([], {"timeout": 1})
        return
    check(seen, target)
    assert {answer["peer"] for answer in seen["answers"]} == {NODES[here][0]}


def test_a_node_port_cannot_be_taken_by_a_process(host: Host) -> None:
    taken = host.run("python3 -c 'import socket; socket.create_server((\"0.0.0.0\", 30080))'")
    assert "Address already in use" in taken.stderr


def eventually(host: Host, wanted: dict[str, int]) -> None:
    deadline = time.monotonic() + 60
    while carried_by(host) != wanted:
        assert time.monotonic() < deadline, f"carried by {carried_by(host)}, not {wanted}"
        time.sleep(0.2)


def test_sctp_is_carried_by_nftables(host: Host) -> None:
    before = carried_by(host)
    host.check_output("cp /root/sctp.yaml /etc/kproxy/manifests/")
    try:
        eventually(host, {**before, "nftables": 1})
        assert in_nftables(host) == ["shop/signalling:ngap"]
        if name(host) == "gpu-a":
            # Where the endpoint runs, so that it can be listened for.
            seen = json.loads(host.check_output("python3 /root/sctp.py 10.96.1.14 38412 web-1"))
            assert seen == {"pods": [["web-1", 38412]]}
    finally:
        host.check_output("rm -f /etc/kproxy/manifests/sctp.yaml")
    eventually(host, before)
    assert in_nftables(host) == []


def test_udp_sockets_of_pods_end_with_their_endpoint(host: Host) -> None:
    """kproxyd has to enter the pod's namespace for it, with no more rights than its unit gives."""
    before, pod = carried_by(host), PODS[name(host)]
    command = f"ip netns exec {pod} python3 /root/departing.py {POD_ADDRESSES[pod]} 5353"
    assert json.loads(host.check_output(command)) == {"answered": pod, "ended": "ECONNABORTED"}
    eventually(host, before)
