"""How fast a pod connects to a Service whose pod is on the same node, as a ratio to connecting to that pod directly.

Every row has a world of its own: client pod, node, server pod, in network namespaces. The dialled Service is the last
of its kind. Rows and the direct world take turns in many short slices, so that what else the machine does hits all
alike; the ratio is that of the best slices, which are the least disturbed ones. Absolute rates mean nothing and are not
printed.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from devtools.bench import ebpf_backend, objects
from devtools.bench.iptables_rules import restore_text
from devtools.conformance.netns import NetworkNamespace

PATHS = ("socket-lb", "tc", "nft", "iptables-legacy", "iptables-nft")
SERVICES = (1, 10000)
#: Rules of the iptables modes are not loaded beyond this: it would take minutes, and say no more.
MOST_IPTABLES_SERVICES = 10000
SLICES, CONNECTIONS, WORKERS = 25, 800, 8
NODE = "192.0.2.1"
CLIENT = "10.128.0.250"
_SOURCE = Path(__file__).with_name("connections.c")


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="./dev bench connect", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--services", type=int, nargs="+", default=SERVICES, metavar="N")
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=PATHS)
    parser.add_argument("--slices", type=int, default=SLICES)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there, too")
    options = parser.parse_args(argv)
    rows = [
        (path, services)
        for services in options.services
        for path in options.paths
        if services <= MOST_IPTABLES_SERVICES or not path.startswith("iptables")
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
        direct = stack.enter_context(World(program, "direct", 1))
        worlds = []
        for path, services in rows:
            print(f"prepare {path} with {services} services", file=sys.stderr, flush=True)
            worlds.append(stack.enter_context(World(program, path, services)))
        taken: list[list[int]] = [[] for _ in worlds]
        base: list[int] = []
        for _ in range(slices):
            base.append(direct.dial())
            for world, found in zip(worlds, taken, strict=True):
                found.append(world.dial())
    return [
        {"path": path, "services": services, "ratio_to_direct": round(min(base) / min(found), 3)}
        for (path, services), found in zip(rows, taken, strict=True)
    ]


@contextlib.contextmanager
def compiled() -> Iterator[str]:
    """Compile the load program; an interpreter would hide the differences."""
    with tempfile.TemporaryDirectory(prefix="kp-bench-") as folder:
        target = os.path.join(folder, "connections")
        subprocess.run(["clang", "-O2", "-Wall", "-Wextra", str(_SOURCE), "-o", target], check=True)
        yield target


class World:
    """Client pod, node and server pod of one row, with the Services loaded."""

    def __init__(self, program: str, path: str, services: int) -> None:
        self._program = program
        self._undo = contextlib.ExitStack()
        self._endpoint = objects.endpointslice(services - 1, 1)["endpoints"][0]["addresses"][0]
        self._dialled = (objects.service(services - 1)["spec"]["clusterIP"], 80)
        self._cgroup = ""
        self.node, self.client, self.server = NetworkNamespace(), NetworkNamespace(), NetworkNamespace()
        for namespace in (self.node, self.client, self.server):
            self._undo.callback(namespace.close)
        self._connect()
        if path == "direct":
            self._dialled = (self._endpoint, 8080)
        elif path.startswith("iptables"):
            self.node.run([path + "-restore"], stdin=restore_text(services, self._endpoint))
        else:
            self._program_services(path, services)
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
            ("client0", "02:6b:00:00:00:01", self.client, CLIENT),
            ("server0", "02:6b:00:00:00:02", self.server, self._endpoint),
        ):
            ends = f"address {mac} arp off"
            lines.append(f"link add dev {device} {ends} up type veth peer name eth0 {ends} netns {leaf.path}")
            lines.append(f"route add {ipaddress.ip_address(ip)}/32 dev {device}")
        lines.append(f"addr add {NODE}/32 dev client0")
        self.node.ip(lines)
        for leaf, ip in ((self.client, CLIENT), (self.server, self._endpoint)):
            leaf.sysctl("ipv4.ip_local_port_range", "10000 65000")
            leaf.ip(["link set lo up", "link set eth0 up", f"addr add {ip}/32 dev eth0"])
            leaf.ip(["route add 0.0.0.0/0 dev eth0"])

    def _program_services(self, path: str, services: int) -> None:
        config = ProxyConfig.from_mapping(
            {"nodeName": objects.NODE_NAME, "clusterCIDR": objects.CLUSTER_CIDR, "ipFamilies": ["IPv4"],
             "nodeIPs": [NODE]}
        )  # fmt: skip
        with self.node.entered():
            backend: Backend
            if path == "nft":
                backend = NftablesBackend(config.families)
            else:
                places = ebpf_backend.places()
                backend = EbpfBackend(config.families, Options(places["bpfDirectory"], places["cgroup"]))
                self._cgroup = places["cgroup"] if path == "socket-lb" else ""
            engine = Engine(config, backend)
            engine.apply([Upsert(obj) for made in objects.cluster(services, 1) if (obj := parse(made)) is not None])
            engine.sync()
        self._undo.callback(backend.close)
        self._undo.callback(self._remove, backend)

    def _remove(self, backend: Backend) -> None:
        with self.node.entered():
            backend.remove()

    def _placed(self, namespace: NetworkNamespace, in_cgroup: bool) -> Callable[[], None]:
        join, cgroup = namespace.joiner(), self._cgroup

        def place() -> None:
            if in_cgroup and cgroup:
                Path(cgroup, "cgroup.procs").write_text("0")
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
