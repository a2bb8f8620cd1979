"""Client, node and server pod of the connection benchmark, with Services loaded on the node by one of the modes."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import pathlib
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_flow_filter import keep_filter
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import DISABLED, XdpOptions
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert, parse
from devtools.bench import ebpf_backend, objects
from devtools.bench.iptables_rules import restore_text
from devtools.conformance.netns import NetworkNamespace

NODE = "192.0.2.1"
POD, OUTSIDER = "10.240.0.250", "192.0.2.50"
#: Every endpoint is an address of the one server pod.
_ENDPOINTS = "10.128.0.0/10"
_SIOCETHTOOL, _ETHTOOL_STXCSUM = 0x8946, 0x17


class Kind(NamedTuple):
    """What a world is like.

    mode: direct, ebpf, nftables, or the iptables command that loads kube-proxy's rules. client: its address. xdp: how
    XDP is attached.
    """

    mode: str
    services: int
    client: str = POD
    xdp: str = DISABLED


class Dialler:
    """A client process that makes connections to addresses of one kind, spread evenly over them."""

    def __init__(self, command: list[str], place: Callable[[], None]) -> None:
        self._process = subprocess.Popen(
            command, preexec_fn=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def dial(self, connections: int) -> int:
        """Make connections; return the nanoseconds they took. Raises RuntimeError if one fails."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("made without pipes")
        with contextlib.suppress(BrokenPipeError):
            print(connections, file=self._process.stdin)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"connections do not get through: {self._process.args!r} ended")
        return int(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@functools.lru_cache(maxsize=1)
def _changes(services: int) -> list[Change]:
    """Return the objects of a cluster of so many Services."""
    made = [Upsert(obj) for manifest in objects.cluster(services, 1) if (obj := parse(manifest)) is not None]
    # They stay: the collector need not walk over them again and again.
    gc.collect()
    gc.freeze()
    return list(made)


def finish_checksums(namespace: NetworkNamespace, device: str) -> None:
    """Let senders compute checksums themselves, as `ethtool --offload DEVICE tx off` does."""
    with namespace.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        off = ctypes.create_string_buffer(struct.pack("=II", _ETHTOOL_STXCSUM, 0), 8)
        fcntl.ioctl(asking, _SIOCETHTOOL, struct.pack("16sQ16x", device.encode(), ctypes.addressof(off)))


class World:
    """Three network namespaces: client, node, server pod."""

    def __init__(self, program: str, kind: Kind) -> None:
        self._program = program
        self._kind = kind
        self._backend: Backend | None = None
        self._cgroup = ""
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            self.node, self.client, self.server = (self._namespace(undo) for _ in range(3))
            self._connect()
            if kind.mode in ("ebpf", "nftables"):
                self._load_services(undo)
            elif kind.mode != "direct":
                self.node.run([kind.mode], stdin=restore_text(kind.services))
            self._serve(undo)
            self._undo = undo.pop_all()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @staticmethod
    def _namespace(undo: contextlib.ExitStack) -> NetworkNamespace:
        made = NetworkNamespace()
        undo.callback(made.close)
        return made

    def _connect(self) -> None:
        self.node.sysctl("ipv4.ip_forward", "1")
        lines = ["link set lo up"]
        for device, mac, leaf, addresses in (
            ("client0", "02:6b:00:00:00:01", self.client, f"{self._kind.client}/32"),
            ("server0", "02:6b:00:00:00:02", self.server, _ENDPOINTS),
        ):
            ends = f"address {mac} arp off"
            lines.append(f"link add dev {device} {ends} up type veth peer name eth0 {ends} netns {leaf.path}")
            lines.append(f"route add {addresses} dev {device}")
        self.node.ip([*lines, f"addr add {NODE}/32 dev client0"])
        for leaf in (self.client, self.server):
            leaf.sysctl("ipv4.ip_local_port_range", "10000 65000")
            leaf.ip(["link set lo up", "link set eth0 up", "route add 0.0.0.0/0 dev eth0"])
        self.client.ip([f"addr add {self._kind.client}/32 dev eth0"])
        self.server.ip([f"route add local {_ENDPOINTS} dev lo"])

    def _load_services(self, undo: contextlib.ExitStack) -> None:
        config = ProxyConfig.from_mapping(
            {"nodeName": objects.NODE_NAME, "clusterCIDR": objects.CLUSTER_CIDR, "ipFamilies": ["IPv4"],
             "nodeIPs": [NODE]}
        )  # fmt: skip
        with self.node.entered():
            backend = NftablesBackend(config.families) if self._kind.mode == "nftables" else self._ebpf(config)
            undo.callback(backend.close)
            undo.callback(self._remove, backend)
            engine = Engine(config, backend)
            engine.apply(_changes(self._kind.services))
            engine.sync()
        self._backend = backend

    def _ebpf(self, config: ProxyConfig) -> EbpfBackend:
        places = ebpf_backend.places()
        self._cgroup = places["cgroup"]
        xdp = XdpOptions(self._kind.xdp, ("client0", "server0"))
        if xdp.mode != DISABLED:
            # XDP sees packets before any hardware, which a veth only pretends to be, has finished their checksums.
            for leaf in (self.client, self.server):
                finish_checksums(leaf, "eth0")
        return EbpfBackend(config.families, Options(places["bpfDirectory"], places["cgroup"], xdp=xdp))

    def _remove(self, backend: Backend) -> None:
        with self.node.entered():
            backend.remove()

    def _serve(self, undo: contextlib.ExitStack) -> None:
        serving = subprocess.Popen(
            [self._program, "serve", "8080"], preexec_fn=self.server.joiner(), stdout=subprocess.PIPE
        )
        undo.callback(serving.communicate)
        undo.callback(serving.kill)
        if serving.stdout is None or not serving.stdout.readline():
            raise RuntimeError("the server does not start")

    @contextlib.contextmanager
    def dialler(self, numbers: range, sockets: bool = False) -> Iterator[Dialler]:
        """Yield a client of the Services of these numbers; in a direct world, of their endpoints.

        sockets: it is in the cgroup whose sockets are translated.
        """
        first, second = (self._address(number) for number in (numbers[0], numbers[0] + 1))
        step = int.from_bytes(socket.inet_aton(second), "big") - int.from_bytes(socket.inet_aton(first), "big")
        port = 8080 if self._kind.mode == "direct" else 80
        made = Dialler([self._program, "dial", first, str(step), str(len(numbers)), str(port)], self._placed(sockets))
        try:
            yield made
        finally:
            made.close()

    def _address(self, number: int) -> str:
        return objects.endpoint_address(number, 1) if self._kind.mode == "direct" else objects.service_address(number)

    def _placed(self, sockets: bool) -> Callable[[], None]:
        join, cgroup = self.client.joiner(), self._cgroup

        def place() -> None:
            if sockets:
                pathlib.Path(cgroup, "cgroup.procs").write_text("0")
            join()

        return place

    def forget_flows(self) -> None:
        """Remove what ended connections have left in the flow table, when none is open.

        The sidecar does so ten seconds after their end, within which one endpoint's source ports (13,616) would be used
        up here: that is a limit of the packet path, not of its speed.
        """
        if isinstance(self._backend, EbpfBackend):
            flows = self._backend.plane.maps["flows4"]
            flows.delete(flows.dump())
            keep_filter(self._backend.plane, 0)

    def check(self) -> None:
        """Raise AssertionError if it was not XDP that carried what a row of XDP is about."""
        if self._kind.xdp != DISABLED and isinstance(self._backend, EbpfBackend):
            carried = self._backend.plane.xdp_packets()
            if carried["by-xdp"] < 5 * carried["by-tc"]:
                raise AssertionError(f"packets were left to tc: {carried}")
