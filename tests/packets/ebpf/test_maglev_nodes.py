"""Maglev with real packets: a flow that another node takes over goes to the endpoint it had."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert, parse
from tests.packets.ebpf.fabric import INET, MAC, WAIT, Fabric, cidr

BALANCER = {4: "203.0.113.80", 6: "2001:db8:80::1"}
PODS = {family: [prefix + str(number) for number in range(21, 26)]
        for family, prefix in ((4, "10.244.2."), (6, "fd00:10:244:2::"))}  # fmt: skip
FLOWS = 40


@pytest.fixture(params=["disabled", "generic"], ids=["both-by-tc", "one-by-xdp"])
def fabric(request: pytest.FixtureRequest) -> Iterator[Fabric]:
    made = Fabric(request.param, table_size=1021)
    try:
        for family in (4, 6):
            announce(made, family, "ingress")
            for ip in PODS[family]:
                made.pod.ip([f"addr add {cidr(ip)} dev eth0" + (" nodad" if family == 6 else "")])
                made.backend.ip(
                    [
                        f"route add {cidr(ip)} dev pod0",
                        f"neigh add {ip} lladdr 02:00:00:00:02:05 dev pod0 nud permanent",
                    ]
                )
                made.ingress.ip(
                    [f"route add {cidr(ip)} dev eth0", f"neigh add {ip} lladdr {MAC['backend']} dev eth0 nud permanent"]
                )
        yield made
    finally:
        made.close()


def announce(fabric: Fabric, family: int, node: str) -> None:
    """Lead the client's packets to the balancer's address to one of the nodes, as a routing protocol would."""
    fabric.client.ip(
        [
            f"route replace {cidr(BALANCER[family])} dev eth0",
            f"neigh replace {BALANCER[family]} lladdr {MAC[node]} dev eth0 nud permanent",
        ]
    )


def objects(pods: dict[int, list[str]]) -> list[Change]:
    documents: list[dict[str, Any]] = [{
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:10:96::1"],
                 "ipFamilies": ["IPv4", "IPv6"], "ports": [{"name": "u", "port": 80, "protocol": "UDP"}]},
        "status": {"loadBalancer": {"ingress": [{"ip": ip} for ip in BALANCER.values()]}},
    }]  # fmt: skip
    documents += [{
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": f"IPv{family}",
        "metadata": {"namespace": "shop", "name": f"web-{family}", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "u", "port": 8080, "protocol": "UDP"}],
        "endpoints": [{"addresses": [ip], "conditions": {"ready": True}, "nodeName": "n2"} for ip in ips],
    } for family, ips in pods.items()]  # fmt: skip
    return [Upsert(obj) for document in documents if (obj := parse(document)) is not None]


class Flows:
    """Client sockets with ports of their own, and a server on every pod address."""

    def __init__(self, fabric: Fabric, family: int) -> None:
        self.family = family
        self.servers = {}
        for ip in PODS[family]:
            with fabric.pod.entered():
                self.servers[ip] = socket.socket(INET[family], socket.SOCK_DGRAM)
            self.servers[ip].bind((ip, 8080))
        self.clients = []
        for _ in range(FLOWS):
            with fabric.client.entered():
                self.clients.append(socket.socket(INET[family], socket.SOCK_DGRAM))
            self.clients[-1].settimeout(WAIT)
            self.clients[-1].connect((BALANCER[family], 80))

    def endpoints(self) -> list[str]:
        """Ask once by every flow; return who answered."""
        found = []
        for client in self.clients:
            client.send(b"question")
            ready, _, _ = select.select(list(self.servers.values()), [], [], WAIT)
            assert len(ready) == 1
            _question, peer = ready[0].recvfrom(16)
            ready[0].sendto(b"answer", peer)
            assert client.recv(16) == b"answer"
            found.append(next(ip for ip, server in self.servers.items() if server is ready[0]))
        return found

    def close(self) -> None:
        for held in (*self.servers.values(), *self.clients):
            held.close()


def test_a_flow_that_another_node_takes_over_keeps_its_endpoint(fabric: Fabric) -> None:
    # The nodes have come to their endpoints by different ways, so their slots lie in different orders.
    fabric.first.sync(objects({number: ips[::-1] for number, ips in PODS.items()}))
    fabric.second.sync(objects({number: ips[2:] for number, ips in PODS.items()}))
    fabric.second.sync(objects(PODS))
    for family in (4, 6):
        flows = Flows(fabric, family)
        try:
            before = flows.endpoints()
            assert len(set(before)) > 3
            announce(fabric, family, "backend")
            assert flows.endpoints() == before
        finally:
            flows.close()
    if fabric.first.options.xdp.mode == "generic":
        assert fabric.first.carried()["by-xdp"] >= 4 * FLOWS
