"""The module `probe` against real tables and pods: what is right passes, and each thing that can be wrong is told.

The kernel is programmed with one set of objects and the module is told another, or somebody else meddles.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.reading import read_documents
from ansible_collections.kproxy.dataplane.plugins.module_utils._verification.checks import Evidence, run
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import BpfFs, NodeCgroup
from tests.module_run import run_module

PODS = ("p1", "p2", "p3")
CONFIG = {"clusterCIDR": "10.244.0.0/16,fd00:10:244::/48"}
SPREAD = 60
#: Of a limit for answers, where some do not come.
SOON = 0.4


def pod_addresses(number: int) -> tuple[str, str]:
    return f"10.244.1.{10 + number}", f"fd00:10:244:1::{10 + number}"


def answer(datagrams: selectors.BaseSelector, stopped: socket.socket) -> None:
    """Send each datagram back, until the other end of the last socket is closed."""
    while True:
        for key, _events in datagrams.select():
            if key.fileobj is stopped:
                stopped.close()
                return
            assert isinstance(key.fileobj, socket.socket)
            text, sender = key.fileobj.recvfrom(2048)
            key.fileobj.sendto(text, sender)


class World:
    """A node and its pods, each of which serves port 8080 over TCP and UDP."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        # First, as it forks, and threads follow.
        self.cgroup = NodeCgroup(f"kp-probe-{os.getpid()}")
        stack.callback(self.cgroup.close)
        self.node = NetworkNamespace()
        stack.callback(self.node.close)
        self.router = NetworkNamespace()
        stack.callback(self.router.close)
        self._link("wan", self.router)
        self.router.ip(["link set eth0 up"])
        self.node.ip(
            ["link set lo up", "addr add 192.0.2.11/32 dev lo", "addr add 2001:db8::11/128 dev lo nodad"]
            # Nobody is behind it; it is where packets go that no rule keeps.
            + ["link set wan up", "route add default dev wan", "route add ::/0 dev wan"]
        )
        for name in ("ipv4.ip_forward", "ipv6.conf.all.forwarding"):
            self.node.sysctl(name, "1")
        self.pods: dict[str, NetworkNamespace] = {}
        datagrams = stack.enter_context(selectors.DefaultSelector())
        for number, name in enumerate(PODS):
            self.pods[name] = pod = NetworkNamespace()
            stack.callback(pod.close)
            self._connect(name, number)
            for protocol in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                with pod.entered():
                    listener = stack.enter_context(socket.socket(socket.AF_INET6, protocol))
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                listener.bind(("::", 8080))
                if protocol == socket.SOCK_STREAM:
                    # The kernel makes the connections by itself.
                    listener.listen(1000)
                else:
                    datagrams.register(listener, selectors.EVENT_READ)
        stop, stopped = socket.socketpair()
        datagrams.register(stopped, selectors.EVENT_READ)
        server = threading.Thread(target=answer, args=(datagrams, stopped))
        server.start()
        stack.callback(server.join)
        stack.callback(stop.close)

    def _connect(self, name: str, number: int) -> None:
        pod, (ipv4, ipv6) = self.pods[name], pod_addresses(number)
        self._link(f"veth-{name}", pod)
        lines = [f"link set veth-{name} up", f"addr add 10.244.1.1/32 dev veth-{name}"]
        lines += [f"addr add fd00:10:244:1::1/128 dev veth-{name} nodad"]
        self.node.ip([*lines, f"route add {ipv4}/32 dev veth-{name}", f"route add {ipv6}/128 dev veth-{name}"])
        lines = [
            "link set lo up",
            "link set eth0 up",
            f"addr add {ipv4}/32 dev eth0",
            f"addr add {ipv6}/128 dev eth0 nodad",
        ]
        for gateway, length in (("10.244.1.1", 32), ("fd00:10:244:1::1", 128)):
            lines += [f"route add {gateway}/{length} dev eth0", f"route add default via {gateway} dev eth0"]
        pod.ip(lines)

    def _link(self, name: str, other: NetworkNamespace) -> None:
        """Connect the node to another namespace, where the link is called eth0."""
        ends = ["dev", name, "type", "veth", "peer", "name", "eth0", "netns", f"/proc/self/fd/{other.descriptor}"]
        subprocess.run(
            ["ip", "link", "add", *ends], check=True, pass_fds=[other.descriptor], preexec_fn=self.node.joiner()
        )

    def nft(self, text: str) -> None:
        self.node.run(["nft", "-f", "-"], stdin=text)

    def program(self, objects: list[dict[str, Any]], **config: Any) -> None:
        """Put the Services into the node's kernel, and nothing else of ours."""
        self.nft("flush ruleset\n")
        settings = ProxyConfig.from_mapping({"nodeName": "n1", **CONFIG, **config})
        with self.node.entered():
            engine = Engine(settings, NftablesBackend(settings.families))
            engine.apply([Upsert(item) for item in read_documents(objects).objects])
            engine.sync()

    def probe(
        self, objects: list[dict[str, Any]], clients: tuple[str, ...] = PODS, cgroup: str = "", **options: Any
    ) -> dict[str, Any]:
        """Run the module on the node, in a cgroup; it believes the objects."""

        def join() -> None:
            self.node.joiner()()
            if cgroup:
                Path(cgroup, "cgroup.procs").write_text("0")

        arguments = {
            "objects": objects,
            "node_name": "n1",
            "config": CONFIG,
            "namespaces": [self.pods[name].path for name in clients],
            "timeout": 5.0,
            **options,
        }
        result = run_module("probe", arguments, join)
        assert not result.get("failed"), result
        return result


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        yield World(stack)


def web(endpoints: tuple[str, ...] = PODS, **spec: Any) -> list[dict[str, Any]]:
    """Return a Service of both IP versions, TCP and UDP, with some of the pods behind it."""
    ports = [{"name": "http", "protocol": "TCP"}, {"name": "dgram", "protocol": "UDP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "10.96.0.20",
            "clusterIPs": ["10.96.0.20", "fd00:10:96::20"],
            "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack",
            "ports": [{**port, "port": 80, "targetPort": 8080} for port in ports],
            **spec,
        },
    }
    slices = [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "namespace": "shop",
                "name": f"web-{family.lower()}",
                "labels": {"kubernetes.io/service-name": "web"},
            },
            "addressType": family,
            "ports": [{**port, "port": 8080} for port in ports],
            "endpoints": [
                {"addresses": [pod_addresses(PODS.index(name))[index]], "nodeName": "n1", "conditions": {"ready": True}}
                for name in endpoints
            ],
        }
        for index, family in enumerate(("IPv4", "IPv6"))
    ]
    return [service, *slices]


STICKY: dict[str, Any] = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}}


def abouts(seen: dict[str, Any]) -> set[str]:
    return {fault["about"] for row in seen["results"] for fault in row["faults"]}


def test_what_is_right_passes(world: World) -> None:
    world.program(web())
    seen = world.probe(web(), spread=SPREAD)
    assert seen["failures"] == []
    assert seen["changed"] is False
    assert seen["not_dialled"] == []
    # Two IP versions, two protocols, the node and three pods.
    assert len(seen["results"]) == 16
    for row in seen["results"]:
        assert len(row["met"]) == SPREAD
        assert set(row["met"]) == set(row["endpoints"])
        assert {"verdict", "source", "spread"} <= set(row["judged"])
        assert row["spread_suffices"] is True
        assert ("hairpin" in row["judged"]) == (row["client"] != "node")


def test_source_ports_that_several_destinations_share(world: World) -> None:
    """A client's port serves each destination anew, also while a connection of before is in TIME-WAIT."""
    objects = web(externalIPs=[f"203.0.113.{number}" for number in range(10, 20)])
    world.program(objects)
    before = world.pods["p1"].run(["sysctl", "-n", "net.ipv4.ip_local_port_range"]).split()
    world.pods["p1"].sysctl("ipv4.ip_local_port_range", "40000 40003")
    try:
        seen = world.probe(objects, clients=("p1",), connections=2)
    finally:
        world.pods["p1"].sysctl("ipv4.ip_local_port_range", " ".join(before))
    assert seen["failures"] == []
    assert len({row["address"] for row in seen["results"] if row["client"] != "node"}) > 4


def test_an_endpoint_that_gets_nothing(world: World) -> None:
    world.program(web(("p1", "p2")))
    seen = world.probe(web(), clients=(), spread=SPREAD)
    assert abouts(seen) == {"spread"}
    assert len(seen["failures"]) == 4
    assert "10.244.1.12:8080 got 0 of 60 connections, 20 would be even over 3 endpoints" in seen["failures"][0]
    # Without so many connections nobody can tell.
    assert world.probe(web(), clients=())["failures"] == []


def test_an_endpoint_that_the_table_does_not_know(world: World) -> None:
    world.program(web())
    seen = world.probe(web(("p1",)), clients=(), connections=30)
    assert abouts(seen) == {"verdict"}
    assert any("was led to 10.244.1.11:8080, expected one of 10.244.1.10:8080" in said for said in seen["failures"])


@pytest.mark.parametrize(
    ("kernel", "believed", "words"),
    [
        ({"masqueradeAll": True}, {}, "expected its own address 10.244.1.10: who masquerades it?"),
        ({}, {"masqueradeAll": True}, "is seen by 10.244.1.12:8080 as 10.244.1.10, expected an address of this node"),
    ],
)
def test_a_source_that_is_not_what_it_should(
    world: World, kernel: dict[str, Any], believed: dict[str, Any], words: str
) -> None:
    world.program(web(("p2", "p3")), **({"nftables": kernel} if kernel else {}))
    config = {**CONFIG, **({"nftables": believed} if believed else {})}
    seen = world.probe(web(("p2", "p3")), clients=("p1",), config=config, connections=20)
    assert abouts(seen) == {"source"}
    assert any(words in said for said in seen["failures"])


def test_somebody_else_masquerades(world: World) -> None:
    world.program(web(("p2",)))
    world.nft(
        "table ip foreign { chain c { type nat hook postrouting priority 50; ip saddr 10.244.0.0/16 masquerade; }; }\n"
    )
    seen = world.probe(web(("p2",)), clients=("p1",))
    assert abouts(seen) == {"source"}
    assert {row["client"] == "node" for row in seen["results"] if row["faults"]} == {False}


def test_a_pod_that_cannot_reach_itself(world: World) -> None:
    world.program(web(("p1",)))
    world.nft("flush set ip kproxy hairpin-endpoints\n")
    seen = world.probe(web(("p1",)), clients=("p1",), timeout=SOON)
    assert abouts(seen) == {"hairpin", "source"}
    assert any("was led to itself (10.244.1.10:8080) and got no answer" in said for said in seen["failures"])
    assert not [row for row in seen["results"] if row["faults"] and ":" in row["source"]]


def test_an_endpoint_that_answers_nobody_is_named_and_no_fault(world: World) -> None:
    """As behind a network that loses what is sent to another node: every connection is led as it should be."""
    world.program(web())
    world.pods["p2"].ip(["link set eth0 address 02:00:00:00:00:01"])
    world.node.ip([f"neigh replace {ip} dev veth-p2 lladdr 02:00:00:00:00:02" for ip in pod_addresses(1)])
    try:
        seen = world.probe(web(), clients=(), connections=30, timeout=SOON)
    finally:
        world.node.ip([f"neigh replace {ip} dev veth-p2 lladdr 02:00:00:00:00:01" for ip in pod_addresses(1)])
    assert seen["failures"] == []
    silent = {row["address"]: row["silent"] for row in seen["results"]}
    assert silent == {
        "10.96.0.20:80/TCP": ["10.244.1.11:8080"],
        "10.96.0.20:80/UDP": [],
        "[fd00:10:96::20]:80/TCP": ["[fd00:10:244:1::11]:8080"],
        "[fd00:10:96::20]:80/UDP": [],
    }
    judged = {check.name: check for check in run(Evidence({}, {}, {}, seen, ()))}
    assert judged["endpoints answer"].result == "warn"
    assert "no answer from 10.244.1.11:8080 of shop/web (asked from node)" in judged["endpoints answer"].message


def test_affinity(world: World) -> None:
    sticky = web(**STICKY)
    world.program(sticky)
    seen = world.probe(sticky, connections=20, spread=SPREAD)
    assert seen["failures"] == []
    assert {"spread" in row["judged"] for row in seen["results"]} == {False}
    assert all("affinity" in row["judged"] and len(set(row["met"])) == 1 for row in seen["results"])
    world.program(web())
    seen = world.probe(sticky, clients=(), connections=20)
    assert abouts(seen) == {"affinity"}
    assert "in 20 connections" in seen["failures"][0]


def test_refuse_and_drop(world: World) -> None:
    nobody = web(())
    world.program(nobody)
    assert world.probe(nobody)["failures"] == []
    world.program(web())
    seen = world.probe(nobody, clients=())
    assert abouts(seen) == {"verdict"}
    assert all("expected reject" in said for said in seen["failures"])
    # Without any rule of ours, a pod's packets leave by the default route and nobody answers.
    world.nft("flush ruleset\n")
    seen = world.probe(nobody, clients=("p1",), protocols=["TCP"], timeout=SOON)
    assert {row["client"] for row in seen["results"] if row["faults"]} == {"node", world.pods["p1"].path}
    assert all("met silence, expected to be refused at once" in said for said in seen["failures"])


@contextlib.contextmanager
def without_routes(namespace: NetworkNamespace) -> Iterator[None]:
    """Take the ways out of IPv4 from a namespace for a while, as on a node without a default route."""
    kept = namespace.run(["ip", "-4", "route", "show", "default"]).strip()
    namespace.ip(["route del default"])
    try:
        yield
    finally:
        namespace.ip([f"route add {kept}"])


@pytest.mark.parametrize("who", ["node", "p1"])
def test_a_client_without_a_way_to_the_service(world: World, who: str) -> None:
    """Whoever cannot even begin to dial is served nothing, and that is no Service of which there is none."""
    world.program(web())
    with without_routes(world.node if who == "node" else world.pods[who]):
        seen = world.probe(web(), clients=("p1",))
    client = "node" if who == "node" else world.pods[who].path
    wrong = [row for row in seen["results"] if row["faults"]]
    assert {(row["client"], row["address"]) for row in wrong} == {
        (client, "10.96.0.20:80/TCP"),
        (client, "10.96.0.20:80/UDP"),
    }
    assert all("no route to 10.96.0.20" in said for said in seen["failures"])
    judged = {check.name: check for check in run(Evidence({}, {}, {}, seen, ()))}
    name = "cluster IPs from the node" if who == "node" else "cluster IPs from pods"
    assert judged[name].result == "fail"
    assert "no route to 10.96.0.20" in judged[name].message


def test_namespaces_that_are_no_pods_are_not_dialled_from(world: World) -> None:
    """Without a choice the first of /run/netns are clients; one that nobody has connected is none."""
    world.program(web())
    names = [f"+kp-probe-{os.getpid()}-{number}" for number in range(3)]
    with contextlib.ExitStack() as stack:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        subprocess.run(["ip", "-n", names[1], "link", "set", "lo", "up"], check=True)
        ends = ["type", "veth", "peer", "name", "eth1"]
        subprocess.run(["ip", "-n", names[2], "link", "add", "eth0", *ends], check=True)
        for line in ("addr add 10.244.1.99/32 dev eth0", "link set eth0 up", "route add default dev eth0"):
            subprocess.run(["ip", "-n", names[2], *line.split()], check=True)
        seen = world.probe(web(), namespaces=None, max_namespaces=1, timeout=SOON)
    assert seen["clients"] == ["node", names[2]]


@contextlib.contextmanager
def programmed_by_ebpf(world: World, objects: list[dict[str, Any]]) -> Iterator[str]:
    """Put the Services into eBPF maps instead, and yield where; sockets of the world's cgroup are translated."""
    world.nft("flush ruleset\n")
    settings = ProxyConfig.from_mapping({"nodeName": "n1", **CONFIG})
    with contextlib.closing(BpfFs()) as bpffs:
        options = Options(os.path.join(bpffs.path, "kproxy"), world.cgroup.path)
        with world.node.entered():
            backend = EbpfBackend(settings.families, options)
            engine = Engine(settings, backend)
            engine.apply([Upsert(item) for item in read_documents(objects).objects])
            engine.sync()
        try:
            yield options.root
        finally:
            with world.node.entered():
                backend.remove()
                backend.close()


def test_through_ebpf(world: World) -> None:
    with programmed_by_ebpf(world, web()):
        seen = world.probe(web(), cgroup=world.cgroup.path, spread=SPREAD)
        assert seen["failures"] == []
        assert all(set(row["met"]) == set(row["endpoints"]) for row in seen["results"])
        assert all("spread" in row["judged"] for row in seen["results"])
        fewer = world.probe(web(("p1",)), clients=("p1",), cgroup=world.cgroup.path, connections=30)
        assert abouts(fewer) == {"verdict"}


@pytest.mark.parametrize("backend", ["nftables", "ebpf"])
def test_endpoints_that_refuse_were_led_to_all_the_same(world: World, backend: str) -> None:
    """As pods whose program has ended: a socket that a reset has closed does not tell its peer any more."""
    objects = web()
    for piece in objects[1:]:
        piece["ports"] = [{**port, "port": 8081} for port in piece["ports"]]
    with contextlib.ExitStack() as stack:
        directory = "/sys/fs/bpf/kp-none"
        if backend == "ebpf":
            directory = stack.enter_context(programmed_by_ebpf(world, objects))
        else:
            world.program(objects)
        seen = world.probe(objects, cgroup=world.cgroup.path, connections=10, ebpf_directory=directory)
    assert seen["failures"] == []
    assert all(set(row["met"]) <= set(row["endpoints"]) for row in seen["results"])
    assert all(row["silent"] == [] for row in seen["results"])


def test_a_port_that_ebpf_refuses_for_other_protocols(world: World) -> None:
    """What a client's own address is must not depend on what a datagram to the same port would meet."""
    web_alone = web(ports=[{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}])
    with programmed_by_ebpf(world, web_alone):
        seen = world.probe(web_alone, cgroup=world.cgroup.path, clients=("p1",))
    assert seen["failures"] == []
    assert {row["client"] for row in seen["results"]} == {"node", world.pods["p1"].path}
    assert all(row["met"] and set(row["met"]) <= set(row["endpoints"]) for row in seen["results"])


def test_what_ebpf_translates_as_packets(world: World) -> None:
    """Where pods get another answer than the world, only the packet tells who it is."""
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30080}]
    ports += [{"name": "dgram", "protocol": "UDP", "port": 80, "targetPort": 8080, "nodePort": 30080}]
    local = web(type="NodePort", externalTrafficPolicy="Local", ports=ports)
    with programmed_by_ebpf(world, local) as directory:
        seen = world.probe(local, cgroup=world.cgroup.path, ebpf_directory=directory)
        assert seen["failures"] == []
        by_pods = [row for row in seen["results"] if row["kind"] == "node-port" and row["client"] != "node"]
        assert len(by_pods) == 12
        assert all({"verdict", "source"} <= set(row["judged"]) for row in by_pods)
        fewer = world.probe(
            [*local[:1], *web(("p1",))[1:]],
            clients=("p2",),
            cgroup=world.cgroup.path,
            ebpf_directory=directory,
            connections=30,
        )
        assert {row["kind"] for row in fewer["results"] if row["faults"]} == {"cluster-ip", "node-port"}


def test_a_kernel_without_sctp_says_so(world: World) -> None:
    objects = web()
    objects[0]["spec"]["ports"] = [{"name": "http", "protocol": "SCTP", "port": 80, "targetPort": 8080}]
    for piece in objects[1:]:
        piece["ports"] = [{"name": "http", "protocol": "SCTP", "port": 8080}]
    world.program(objects)
    seen = world.probe(objects, clients=("p1",))
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError:
        assert seen["not_dialled"] == ["SCTP: this kernel does not speak SCTP"]
        assert seen["results"] == []
    else:
        assert seen["not_dialled"] == []
        assert {row["protocol"] for row in seen["results"]} == {"SCTP"}
    assert seen["failures"] == []
