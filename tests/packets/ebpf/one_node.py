"""A client, a node on the eBPF backend and a pod behind it, each a namespace; and a Service of both families."""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert, parse
from devtools.conformance.netns import NetworkNamespace
from devtools.conformance.node_cgroup import BpfFs, NodeCgroup

#: Whatever comes, comes at once; who waits so long waits in vain.
WAIT = 60.0
NODE = {4: "192.0.2.11", 6: "2001:db8:1::11"}
CLIENT = {4: "198.51.100.9", 6: "2001:db8:f::9"}
POD = {4: "10.244.1.5", 6: "fd00:10:244:1::5"}
CLUSTER_IP = {4: "10.96.0.1", 6: "fd00:10:96::1"}
_numbers = itertools.count()
INET = {4: socket.AF_INET, 6: socket.AF_INET6}


def cidr(ip: str) -> str:
    return f"{ip}/{ipaddress.ip_address(ip).max_prefixlen}"


class World:
    """client -- node -- pod."""

    def __init__(self) -> None:
        self.node, self.client, self.pod = NetworkNamespace(), NetworkNamespace(), NetworkNamespace()
        for name in ("ipv4.ip_forward", "ipv6.conf.all.forwarding"):
            self.node.sysctl(name, "1")
        for name in ("ipv4.icmp_ratelimit", "ipv6.icmp.ratelimit"):
            self.node.sysctl(name, "0")
            self.pod.sysctl(name, "0")
        # Strict reverse path filtering: the path must not need it to be off.
        self.node.sysctl("ipv4.conf.default.rp_filter", "1")
        # One MAC address at both ends and no ARP: nothing has to be resolved.
        pairs = (("up0", "02:00:00:00:00:01", self.client), ("pod0", "02:00:00:00:00:02", self.pod))
        self.node.ip(
            [
                "link set lo up",
                *(
                    f"link add dev {device} address {mac} arp off up type veth"
                    f" peer name eth0 address {mac} arp off netns {leaf.path}"
                    for device, mac, leaf in pairs
                ),
                *(f"addr add {cidr(ip)} dev up0" + (" nodad" if ":" in ip else "") for ip in NODE.values()),
            ]
        )
        self._leaf(self.client, CLIENT.values())
        self._leaf(self.pod, POD.values())
        self.node.ip(
            [f"route add {cidr(ip)} dev up0" for ip in CLIENT.values()]
            + [f"route add {cidr(ip)} dev pod0" for ip in POD.values()]
        )
        self.node.wait_until_up("up0", "pod0")
        self.bpffs = BpfFs()
        self.cgroup = NodeCgroup(f"kp-ebpf-path-{os.getpid()}-{next(_numbers)}")
        self.servers: list[socket.socket] = []
        with self.node.entered():
            self.backend = EbpfBackend(options=Options(os.path.join(self.bpffs.path, "kproxy"), self.cgroup.path))
        self._others: list[EbpfBackend] = []
        self.engine = Engine(
            ProxyConfig.from_mapping(
                {"nodeName": "n1", "clusterCIDR": "10.244.0.0/16,fd00:10:244::/48", "nodeIPs": list(NODE.values())}
            ),
            self.backend,
        )

    @staticmethod
    def _leaf(namespace: NetworkNamespace, ips: Any) -> None:
        namespace.ip(
            [
                "link set lo up",
                "link set eth0 up",
                *(f"addr add {cidr(ip)} dev eth0" + (" nodad" if ":" in ip else "") for ip in ips),
                "route add 0.0.0.0/0 dev eth0",
                "route add ::/0 dev eth0",
            ]
        )

    def sync(self, *changes: Change) -> None:
        with self.node.entered():
            self.engine.apply(changes)
            self.engine.sync()

    def another_backend(self) -> EbpfBackend:
        """Return what another run of kproxyd would use; closed with the world, and never before, as if killed."""
        self._others.append(EbpfBackend(options=self.backend.options))
        return self._others[-1]

    def serve(self, namespace: NetworkNamespace, ip: str, port: int, kind: int) -> socket.socket:
        with namespace.entered():
            server = socket.socket(INET[6 if ":" in ip else 4], kind)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((ip, port))
        if kind == socket.SOCK_STREAM:
            server.listen(16)
        server.settimeout(WAIT)
        self.servers.append(server)
        return server

    def client_socket(self, namespace: NetworkNamespace, family: int, kind: int) -> socket.socket:
        with namespace.entered():
            made = socket.socket(INET[family], kind)
        made.settimeout(WAIT)
        return made

    def close(self) -> None:
        with self.node.entered():
            self.backend.remove()
            for backend in (self.backend, *self._others):
                backend.close()
        for server in self.servers:
            server.close()
        self.bpffs.close()
        self.cgroup.close()
        for namespace in (self.node, self.client, self.pod):
            namespace.close()


def objects(**spec: Any) -> list[Change]:
    service = parse({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "NodePort", "clusterIP": CLUSTER_IP[4], "clusterIPs": list(CLUSTER_IP.values()),
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "t", "port": 80, "protocol": "TCP", "nodePort": 30080},
                      {"name": "u", "port": 80, "protocol": "UDP", "nodePort": 30080}],
            **spec,
        },
    })  # fmt: skip
    assert service is not None
    return [Upsert(service)]


def slices(pods: dict[int, str] = POD, node: str = "n1") -> list[Change]:
    found: list[Change] = []
    for family in (4, 6):
        obj = parse({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": f"IPv{family}",
            "metadata": {"namespace": "shop", "name": f"web-{family}", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "t", "port": 8080, "protocol": "TCP"}, {"name": "u", "port": 8080, "protocol": "UDP"}],
            "endpoints": [{"addresses": [pods[family]], "conditions": {"ready": True}, "nodeName": node}]
            if family in pods else [],
        })  # fmt: skip
        assert obj is not None
        found.append(Upsert(obj))
    return found
