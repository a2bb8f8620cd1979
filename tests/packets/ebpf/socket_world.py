"""A node and a pod on one wire, with socket programs on a cgroup of their own: what tests of sockets stand on."""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
import struct

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf import layout
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.netns_cookie import own_netns_cookie
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import BpfFs, NodeCgroup

TCP, UDP = 6, 17
POD4, POD6 = "10.244.1.5", "fd00:10:244:1::5"
VIP4, VIP6 = "10.96.0.10", "fd00:10:96::10"
NODE4 = "192.0.2.11"
STREAM, DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
#: Whatever comes, comes at once; who waits so long waits in vain.
WAIT = 60.0
_numbers = itertools.count()


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


class World:
    """A node and a pod on one wire, the pod serving TCP and UDP port 8080; a data plane on the node's cgroup."""

    def __init__(self) -> None:
        self.node, self.pod = NetworkNamespace(), NetworkNamespace()
        self.node.ip(
            [
                "link set lo up",
                "link add dev p0 up type veth peer name eth0 netns " + self.pod.path,
                f"addr add {NODE4}/32 dev p0",
                "addr add 2001:db8::11/128 dev p0 nodad",
            ]
        )
        self.pod.ip(
            [
                "link set lo up",
                "link set eth0 up",
                f"addr add {POD4}/32 dev eth0",
                f"addr add {POD6}/128 dev eth0 nodad",
                "route add 0.0.0.0/0 dev eth0",
                "route add ::/0 dev eth0",
            ]
        )
        self.node.ip([f"route add {POD4}/32 dev p0", "route add 10.244.1.6/32 dev p0", f"route add {POD6}/128 dev p0"])
        self.cgroup = NodeCgroup(f"kp-ebpf-test-{os.getpid()}-{next(_numbers)}")
        self.bpffs = BpfFs()
        self.plane = Dataplane(os.path.join(self.bpffs.path, "kproxy"), self.cgroup.path)
        self.taken_by_others = 0
        self.servers = []
        for family, ip in ((socket.AF_INET, POD4), (socket.AF_INET6, POD6)):
            for kind in (STREAM, DGRAM):
                with self.pod.entered():
                    server = socket.socket(family, kind)
                server.bind((ip, 8080))
                if kind == STREAM:
                    server.listen(16)
                self.servers.append(server)

    def serve(self) -> None:
        self.plane.open({})
        self.plane.set_settings(self.settings())
        self.plane.write(frontend_plan())
        self.plane.attach()

    def close(self) -> None:
        self.plane.remove()
        for server in self.servers:
            server.close()
        self.bpffs.close()
        self.cgroup.close()
        self.node.close()
        self.pod.close()

    def client(self, family: int, kind: int, where: NetworkNamespace | None = None) -> socket.socket:
        made = self.cgroup.socket((where or self.node).descriptor, family, kind)
        made.settimeout(WAIT)
        return made

    def listen(self, port: int) -> list[socket.socket]:
        """Let the pod serve another TCP port, too."""
        made = []
        for family, ip in ((socket.AF_INET, POD4), (socket.AF_INET6, POD6)):
            with self.pod.entered():
                server = socket.socket(family, STREAM)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind((ip, port))
            server.listen(16)
            made.append(server)
        return made

    def server(self, family: int, kind: int) -> socket.socket:
        return next(server for server in self.servers if server.family == family and server.type == kind)

    def settings(self, flags: int = 0) -> layout.Settings:
        with self.node.entered():
            cookie = own_netns_cookie()
        return layout.Settings(cookie, flags, 10, packed(NODE4), packed("2001:db8::11"))


def frontend_plan(answers: tuple[int, int, int] = (0, 0, 0), flags: int = 0, seconds: int = 0) -> MapPlan:
    """One service port: VIP:80 and NodePort 30080, one endpoint, both families and protocols."""
    plan = MapPlan()
    for family, vip, pod, node in ((4, VIP4, POD4, NODE4), (6, VIP6, POD6, "2001:db8::11")):
        held = layout.endpoint(packed(pod), 8080, layout.ENDPOINT_LOCAL)
        plan.put(f"slots{family}", layout.slot_key(layout.set_number(1, False), 0), held)
        plan.put(f"members{family}", layout.member_key(layout.set_number(1, False), held), b"\1\0\0\0")
        plan.put(f"cluster_ips{family}", packed(vip), b"\1\0\0\0")
        plan.put(f"node_addrs{family}", packed(node), b"\1\0\0\0")
        for protocol in (TCP, UDP):
            value = layout.FrontendValue(1, 1, 0, seconds, answers, flags, held).pack(family)
            plan.put(f"frontends{family}", layout.frontend_key(family, packed(vip), protocol, 80), value)
            plan.put(f"frontends{family}", layout.frontend_key(family, b"", protocol, 30080), value)
    return plan


def places(world: World) -> tuple[int, int]:
    """How many places sockets of the test have taken, and how many have found theirs taken."""
    taken, elsewhere = -world.taken_by_others, 0
    for name, values in world.plane.read(("connected4", "connected6")).items():
        rest = layout.SIZES[name][1] - 16
        for one, others in struct.iter_unpack(f"=8xII{rest}x", b"".join(values.values())):
            taken, elsewhere = taken + one, elsewhere + others
    return taken, elsewhere


def take_every_place(world: World) -> None:
    """Leave none to sockets that are made from now on, as if as many others were connected."""
    for family, size in ((4, 4), (6, 16)):
        taken = layout.Place((1 << 64) - 1, 1, 0, bytes(size), 0, bytes(size), 0).pack()
        opened = world.plane.maps[f"connected{family}"]
        opened.update({index.to_bytes(4, "little"): taken for index in range(opened.info.max_entries)})
        world.taken_by_others += opened.info.max_entries
