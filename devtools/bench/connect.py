"""How fast a client connects to a Service whose endpoint is behind the same node, as a ratio to connecting directly.

Every row has a world of its own: client, node, server pod, in network namespaces. The dialled Service is the last of
its kind. The client is a pod of the node; for XDP, which is for outsiders alone, it is one.

Rows take turns in many short slices, with a slice of direct connections before and after each, and a slice counts by
its ratio to those two: what else the machine does hits neighbours alike. A row is the median of its ratios. Absolute
rates mean nothing and are not printed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import functools
import ipaddress
import json
import os
import pathlib
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import DISABLED, XdpOptions
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert, parse
from devtools.bench import ebpf_backend, objects
from devtools.bench.iptables_rules import restore_text
from devtools.conformance.netns import NetworkNamespace

SERVICES = (1, 10000, 100000)
SLICES, CONNECTIONS, WORKERS = 25, 800, 8
NODE = "192.0.2.1"
POD, OUTSIDER = "10.128.0.250", "192.0.2.50"
_SIOCETHTOOL, _ETHTOOL_STXCSUM = 0x8946, 0x17
_SOURCE = pathlib.Path(__file__).with_name("connections.c")


class Path(NamedTuple):
    """One way from an address dialled to an endpoint.

    mode: ebpf, nftables, or the iptables command that loads kube-proxy's rules. sockets: the client is in the cgroup
    whose sockets are translated. client: its address. xdp: how XDP is attached. most_services: what is loaded at most.
    """

    mode: str
    sockets: bool = False
    client: str = POD
    xdp: str = "disabled"
    most_services: int = 1000000


#: Rules of the iptables modes are not loaded beyond 10,000 Services: it would take minutes, and say no more.
PATHS = {
    "socket-lb": Path("ebpf", sockets=True),
    "tc": Path("ebpf"),
    "xdp": Path("ebpf", client=OUTSIDER, xdp="generic"),
    "nft": Path("nftables"),
    "iptables-legacy": Path("iptables-legacy-restore", most_services=10000),
    "iptables-nft": Path("iptables-nft-restore", most_services=10000),
}
DIRECT = Path("direct")


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="./dev bench connect", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--services", type=int, nargs="+", default=SERVICES, metavar="N")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--slices", type=int, default=SLICES)
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the rows there, too")
    options = parser.parse_args(argv)
    rows = [
        (path, services)
        for services in options.services
        for path in options.paths
        if services <= PATHS[path].most_services
    ]
    found = measure(rows, options.slices)
    for row in found:
        print(f"{row['path']:<16}{row['services']:>8} services  {row['ratio_to_direct']:.2f} of direct")
    if options.json is not None:
        options.json.write_text(json.dumps({"rows": found}, indent=2) + "\n")
    return 0


def measure(rows: Sequence[tuple[str, int]], slices: int) -> list[dict[str, Any]]:
    """Return the ratios of all rows."""
    with contextlib.ExitStack() as stack:
        program = stack.enter_context(compiled())
        direct = stack.enter_context(World(program, DIRECT, 1))
        worlds = []
        for path, services in rows:
            print(f"prepare {path} with {services} services", file=sys.stderr, flush=True)
            worlds.append(stack.enter_context(World(program, PATHS[path], services)))
        ratios: list[list[float]] = [[] for _ in worlds]
        for _ in range(slices):
            before = direct.dial()
            for world, found in zip(worlds, ratios, strict=True):
                taken, after = world.dial(), direct.dial()
                found.append((before + after) / 2 / taken)
                before = after
        for world in worlds:
            world.check()
    return [
        {"path": path, "services": services, "ratio_to_direct": round(statistics.median(found), 3)}
        for (path, services), found in zip(rows, ratios, strict=True)
    ]


@functools.lru_cache(maxsize=1)
def changes(services: int) -> list[Change]:
    """Return the objects of a cluster of so many Services."""
    return [Upsert(obj) for made in objects.cluster(services, 1) if (obj := parse(made)) is not None]


@contextlib.contextmanager
def compiled() -> Iterator[str]:
    """Compile the load program; an interpreter would hide the differences."""
    with tempfile.TemporaryDirectory(prefix="kp-bench-") as folder:
        target = os.path.join(folder, "connections")
        subprocess.run(["clang", "-O2", "-Wall", "-Wextra", str(_SOURCE), "-o", target], check=True)
        yield target


def finish_checksums(namespace: NetworkNamespace, device: str) -> None:
    """Let senders compute checksums themselves, as `ethtool --offload DEVICE tx off` does."""
    with namespace.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        off = ctypes.create_string_buffer(struct.pack("=II", _ETHTOOL_STXCSUM, 0), 8)
        fcntl.ioctl(asking, _SIOCETHTOOL, struct.pack("16sQ16x", device.encode(), ctypes.addressof(off)))


class World:
    """Client pod, node and server pod of one row, with the Services loaded."""

    def __init__(self, program: str, path: Path, services: int) -> None:
        self._program = program
        self._path = path
        self._backend: Backend | None = None
        self._undo = contextlib.ExitStack()
        self._endpoint = objects.endpointslice(services - 1, 1)["endpoints"][0]["addresses"][0]
        self._dialled = (objects.service(services - 1)["spec"]["clusterIP"], 80)
        self._cgroup = ""
        self.node, self.client, self.server = NetworkNamespace(), NetworkNamespace(), NetworkNamespace()
        for namespace in (self.node, self.client, self.server):
            self._undo.callback(namespace.close)
        self._connect()
        if path is DIRECT:
            self._dialled = (self._endpoint, 8080)
        elif path.mode in ("ebpf", "nftables"):
            self._program_services(services)
        else:
            self.node.run([path.mode], stdin=restore_text(services, self._endpoint))
        serving = subprocess.Popen(
            [program, "serve", self._endpoint, "8080"], preexec_fn=self._placed(self.server, False)
        )
        self._undo.callback(serving.wait)
        self._undo.callback(serving.kill)
        self.dial(WORKERS)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _connect(self) -> None:
        self.node.sysctl("ipv4.ip_forward", "1")
        lines = ["link set lo up"]
        for device, mac, leaf, ip in (
            ("client0", "02:6b:00:00:00:01", self.client, self._path.client),
            ("server0", "02:6b:00:00:00:02", self.server, self._endpoint),
        ):
            ends = f"address {mac} arp off"
            lines.append(f"link add dev {device} {ends} up type veth peer name eth0 {ends} netns {leaf.path}")
            lines.append(f"route add {ipaddress.ip_address(ip)}/32 dev {device}")
        lines.append(f"addr add {NODE}/32 dev client0")
        self.node.ip(lines)
        for leaf, ip in ((self.client, self._path.client), (self.server, self._endpoint)):
            leaf.sysctl("ipv4.ip_local_port_range", "10000 65000")
            leaf.ip(["link set lo up", "link set eth0 up", f"addr add {ip}/32 dev eth0"])
            leaf.ip(["route add 0.0.0.0/0 dev eth0"])

    def _program_services(self, services: int) -> None:
        config = ProxyConfig.from_mapping(
            {"nodeName": objects.NODE_NAME, "clusterCIDR": objects.CLUSTER_CIDR, "ipFamilies": ["IPv4"],
             "nodeIPs": [NODE]}
        )  # fmt: skip
        with self.node.entered():
            if self._path.mode == "nftables":
                self._backend = NftablesBackend(config.families)
            else:
                self._backend = self._ebpf(config)
            engine = Engine(config, self._backend)
            engine.apply(changes(services))
            engine.sync()
        self._undo.callback(self._backend.close)
        self._undo.callback(self._remove, self._backend)

    def _ebpf(self, config: ProxyConfig) -> EbpfBackend:
        places = ebpf_backend.places()
        self._cgroup = places["cgroup"] if self._path.sockets else ""
        xdp = XdpOptions(self._path.xdp, ("client0", "server0"))
        if xdp.mode != DISABLED:
            # XDP sees packets before any hardware, which a veth only pretends to be, has finished their checksums.
            for leaf in (self.client, self.server):
                finish_checksums(leaf, "eth0")
        return EbpfBackend(config.families, Options(places["bpfDirectory"], places["cgroup"], xdp=xdp))

    def check(self) -> None:
        """Raise AssertionError if it was not XDP that carried what a row of XDP is about."""
        if self._path.xdp != DISABLED and isinstance(self._backend, EbpfBackend):
            carried = self._backend.plane.xdp_packets()
            if carried["by-xdp"] < 10 * carried["by-tc"]:
                raise AssertionError(f"packets were left to tc: {carried}")

    def _remove(self, backend: Backend) -> None:
        with self.node.entered():
            backend.remove()

    def _placed(self, namespace: NetworkNamespace, in_cgroup: bool) -> Callable[[], None]:
        join, cgroup = namespace.joiner(), self._cgroup

        def place() -> None:
            if in_cgroup and cgroup:
                pathlib.Path(cgroup, "cgroup.procs").write_text("0")
            join()

        return place

    def dial(self, connections: int = CONNECTIONS) -> int:
        """Make connections from the client pod; return the nanoseconds they took."""
        ip, port = self._dialled
        done = subprocess.run(
            [self._program, "dial", ip, str(port), str(connections), str(WORKERS)],
            preexec_fn=self._placed(self.client, True), check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        return int(done.stdout)
