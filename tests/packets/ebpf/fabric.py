"""Two nodes and a client on one bridge, a pod behind the second node, for what crosses nodes: XDP and direct return.

client eth0 -- bridge -- eth0 ingress          The client also has eth1, straight to up0 of the ingress node.
                 |------ eth0 backend pod0 -- eth0 pod
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import os
import select
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_syscall as bpf
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_xdp import XdpOptions
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import mount_point
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import BpfFs

#: Whatever comes, comes at once; who waits so long waits in vain.
WAIT = 60.0
INGRESS = {4: "192.0.2.11", 6: "2001:db8:1::11"}
BACKEND = {4: "192.0.2.12", 6: "2001:db8:1::12"}
CLIENT = {4: "198.51.100.9", 6: "2001:db8:f::9"}
#: The client's address on its straight way to the ingress node.
NEAR = {4: "198.51.100.19", 6: "2001:db8:f::19"}
POD = {4: "10.244.2.5", 6: "fd00:10:244:2::5"}
INET = {4: socket.AF_INET, 6: socket.AF_INET6}
MAC = {"client": "02:00:00:00:00:01", "ingress": "02:00:00:00:00:02", "backend": "02:00:00:00:00:03"}
OFF_LOADS = {"tx": 0x17, "tso": 0x1F, "gso": 0x24}
_SIOCETHTOOL = 0x8946
_XDP, _XDP_PASS = (6, 37), bytes.fromhex("b7000000020000009500000000000000")


def cidr(ip: str) -> str:
    return f"{ip}/{ipaddress.ip_address(ip).max_prefixlen}"


def every(*tables: dict[int, str]) -> list[str]:
    return [ip for table in tables for ip in table.values()]


def pass_program(name: str = "pass") -> int:
    """Load a program that passes every packet on."""
    return bpf.program_load(name, *_XDP, _XDP_PASS, b"GPL")


class Node:
    """One node with an engine of its own."""

    def __init__(self, name: str, addresses: dict[int, str], namespace: NetworkNamespace, options: Options) -> None:
        self.namespace = namespace
        self.bpffs = BpfFs()
        # Empty: nobody's sockets are translated, every connection is one on the wire.
        self.cgroup = os.path.join(mount_point(), f"kp-fabric-{name}-{os.getpid()}")
        os.mkdir(self.cgroup)
        self.config = ProxyConfig.from_mapping({
            "nodeName": name, "clusterCIDR": "10.244.0.0/16,fd00:10:244::/48", "nodeIPs": list(addresses.values()),
        })  # fmt: skip
        self.options = options._replace(root=os.path.join(self.bpffs.path, "kproxy"), cgroup=self.cgroup)
        self.start()

    def start(self) -> None:
        """Make an engine as a new process would: it knows nothing and adopts what is pinned."""
        with self.namespace.entered():
            self.backend = EbpfBackend(options=self.options)
        self.engine = Engine(self.config, self.backend)

    def sync(self, changes: Iterable[Change]) -> None:
        with self.namespace.entered():
            self.engine.apply(list(changes))
            self.engine.sync()

    def carried(self) -> dict[str, int]:
        return self.backend.plane.xdp_packets()

    def close(self) -> None:
        with self.namespace.entered():
            self.backend.remove()
            self.backend.close()
        self.bpffs.close()
        os.rmdir(self.cgroup)


class Fabric:
    """The topology of the module's docstring. mtu: of the bridge and of everything on it. xdp: of the ingress node."""

    def __init__(
        self,
        xdp: str = "disabled",
        forwarding: str = "snat",
        devices: tuple[str, ...] = ("*",),
        mtu: int = 1500,
        table_size: int = 0,
    ) -> None:
        self.bridge, self.client = NetworkNamespace(), NetworkNamespace()
        self.ingress, self.backend, self.pod = NetworkNamespace(), NetworkNamespace(), NetworkNamespace()
        self.links: list[int] = []
        self.servers: list[socket.socket] = []
        self._wire(mtu)
        if xdp == "native":
            # XDP takes packets as they are, and sends only to a veth whose peer runs a program, too.
            self.accept_native(self.bridge, "ingress")
            self.accept_native(self.client, "eth1")
        chosen = Options(forwarding=forwarding, table_size=table_size)
        self.first = Node("n1", INGRESS, self.ingress, chosen._replace(xdp=XdpOptions(xdp, devices)))
        self.second = Node("n2", BACKEND, self.backend, chosen)

    def _wire(self, mtu: int) -> None:
        for node in (self.ingress, self.backend):
            for name in ("ipv4.ip_forward", "ipv6.conf.all.forwarding"):
                node.sysctl(name, "1")
            node.sysctl("ipv4.conf.default.rp_filter", "1")
        for namespace in (self.ingress, self.backend, self.pod):
            namespace.sysctl("ipv4.icmp_ratelimit", "0")
            namespace.sysctl("ipv6.icmp.ratelimit", "0")
        on_bridge = {"client": self.client, "ingress": self.ingress, "backend": self.backend}
        self.bridge.ip(["link add br0 type bridge mcast_snooping 0", "link set br0 up"])
        for name, namespace in on_bridge.items():
            self.bridge.ip([
                f"link add {name} mtu {mtu} type veth"
                f" peer name eth0 address {MAC[name]} mtu {mtu} netns {namespace.path}",
                f"link set {name} master br0 up",
            ])  # fmt: skip
        self.ingress.ip(
            [
                "link add up0 address 02:00:00:00:01:02 type veth"
                f" peer name eth1 address 02:00:00:00:01:01 netns {self.client.path}"
            ]
        )
        self.backend.ip(
            [
                "link add pod0 address 02:00:00:00:02:03 type veth"
                f" peer name eth0 address 02:00:00:00:02:05 netns {self.pod.path}"
            ]
        )
        self._settle(
            self.client,
            {"eth0": every(CLIENT), "eth1": every(NEAR)},
            [("eth0", MAC["ingress"], every(INGRESS)), ("eth0", MAC["backend"], every(BACKEND, POD))],
        )
        self._settle(
            self.ingress,
            {"eth0": every(INGRESS), "up0": []},
            [
                ("eth0", MAC["client"], every(CLIENT)),
                ("eth0", MAC["backend"], every(BACKEND, POD)),
                ("up0", "02:00:00:00:01:01", every(NEAR)),
            ],
        )
        self._settle(
            self.backend,
            {"eth0": every(BACKEND), "pod0": []},
            [
                ("eth0", MAC["client"], every(CLIENT)),
                ("eth0", MAC["ingress"], every(INGRESS, NEAR)),
                ("pod0", "02:00:00:00:02:05", every(POD)),
            ],
        )
        self._settle(
            self.pod, {"eth0": every(POD)}, [("eth0", "02:00:00:00:02:03", every(CLIENT, NEAR, INGRESS, BACKEND))]
        )

    @staticmethod
    def _settle(
        namespace: NetworkNamespace, own: dict[str, list[str]], peers: list[tuple[str, str, list[str]]]
    ) -> None:
        """Addresses, then a route and a permanent neighbour for every peer: nothing has to be resolved."""
        lines = ["link set lo up", *(f"link set {device} up" for device in own)]
        lines += [f"addr add {cidr(ip)} dev {device}" + (" nodad" if ":" in ip else "")
                  for device, ips in own.items() for ip in ips]  # fmt: skip
        for device, mac, ips in peers:
            for ip in ips:
                lines.append(f"route add {cidr(ip)} dev {device}")
                lines.append(f"neigh add {ip} lladdr {mac} dev {device} nud permanent")
        namespace.ip(lines)

    def straight(self) -> None:
        """Lead the client's packets to the ingress node over eth1."""
        self.client.ip([f"route replace {cidr(INGRESS[family])} dev eth1 src {NEAR[family]}" for family in (4, 6)]
                       + [f"neigh add {INGRESS[family]} lladdr 02:00:00:00:01:02 dev eth1 nud permanent"
                          for family in (4, 6)])  # fmt: skip

    def accept_native(self, namespace: NetworkNamespace, device: str) -> None:
        """Let a veth take what its peer sends by native XDP, and senders finish their checksums."""
        program = pass_program()
        with namespace.entered():
            self.links.append(bpf.link_create(program, socket.if_nametoindex(device), 37, 1 << 2))
        os.close(program)
        for sender, name in ((self.client, "eth0"), (self.client, "eth1"), (self.pod, "eth0")):
            self.finish_checksums(sender, name)

    @staticmethod
    def finish_checksums(namespace: NetworkNamespace, device: str) -> None:
        with namespace.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for command in OFF_LOADS.values():
                value = ctypes.create_string_buffer(struct.pack("=II", command, 0), 8)
                fcntl.ioctl(asking, _SIOCETHTOOL, struct.pack("16sQ16x", device.encode(), ctypes.addressof(value)))

    def sync(self, *changes: Change) -> None:
        self.first.sync(changes)
        self.second.sync(changes)

    def serve(self, family: int, kind: int, port: int = 8080) -> socket.socket:
        """Listen in the pod."""
        with self.pod.entered():
            server = socket.socket(INET[family], kind)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((POD[family], port))
        if kind == socket.SOCK_STREAM:
            server.listen(16)
        server.settimeout(WAIT)
        self.servers.append(server)
        return server

    def dial(self, family: int, kind: int, port: int = 30080, node: dict[int, str] = INGRESS) -> socket.socket:
        """Connect from the client to a port of a node, by default the ingress node."""
        with self.client.entered():
            made = socket.socket(INET[family], kind)
        made.settimeout(WAIT)
        made.connect((node[family], port))
        return made

    @staticmethod
    def exchange(sender: socket.socket, receiver: socket.socket, word: bytes) -> None:
        """Send a long word and read it at the other end meanwhile."""
        received, sent = bytearray(), 0
        sender.setblocking(False)
        try:
            while len(received) < len(word):
                writers = [sender] if sent < len(word) else []
                readable, writable, _ = select.select([receiver], writers, [], WAIT)
                assert readable or writable, f"stalled after {len(received)} of {len(word)} bytes"
                if writable:
                    sent += sender.send(word[sent : sent + 65536])
                if readable:
                    received += receiver.recv(1 << 17)
        finally:
            sender.settimeout(WAIT)
        assert received == word

    def sent_by_ingress(self) -> int:
        """Return the bytes that the ingress node has sent over the bridge."""
        with self.ingress.entered():
            text = Path("/proc/thread-self/net/dev").read_text(encoding="ascii")
        line = next(line for line in text.splitlines() if line.strip().startswith("eth0:"))
        return int(line.partition(":")[2].split()[8])

    def close(self) -> None:
        for node in (self.first, self.second):
            node.close()
        for link in self.links:
            os.close(link)
        for server in self.servers:
            server.close()
        for namespace in (self.bridge, self.client, self.ingress, self.backend, self.pod):
            namespace.close()
