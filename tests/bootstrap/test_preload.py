"""What is in the kernel before kubelet starts, with real connections: the API server answers, cluster DNS refuses."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap.preload import first_services
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.engine import Engine
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.reading import read_documents
from devtools.conformance.netns import NetworkNamespace

SERVICES4, SERVICES6 = "10.96.0.0/12", "fd00:10:96::/108"
NODE4, NODE6 = "192.0.2.11", "2001:db8::11"
PORT = 6443


@pytest.fixture
def node() -> Iterator[NetworkNamespace]:
    """A namespace that stands for a node of both IP versions, entered by the test."""
    made = NetworkNamespace()
    with made.entered():
        made.ip(
            [
                "link set lo up",
                f"addr add {NODE4}/32 dev lo",
                f"addr add {NODE6}/128 dev lo nodad",
                f"route add {SERVICES4} dev lo",
                f"route add {SERVICES6} dev lo",
            ]
        )
        yield made
    made.close()


#: ranges of the Services, API servers, cluster IPs of the API server and of DNS.
CLUSTERS = [
    ("IPv4", [SERVICES4], [NODE4], "10.96.0.1", "10.96.0.10"),
    ("IPv6", [SERVICES6], [NODE6], "fd00:10:96::1", "fd00:10:96::a"),
    ("both", [SERVICES4, SERVICES6], [NODE4], "10.96.0.1", "10.96.0.10"),
    ("both, IPv6 first", [SERVICES6, SERVICES4], [NODE6], "fd00:10:96::1", "fd00:10:96::a"),
]


@pytest.mark.parametrize(
    ("ranges", "servers", "api_server", "dns"), [row[1:] for row in CLUSTERS], ids=[row[0] for row in CLUSTERS]
)
def test_the_first_services(
    node: NetworkNamespace, ranges: list[str], servers: list[str], api_server: str, dns: str
) -> None:
    config = ProxyConfig.from_mapping({"nodeName": "cp-1"})
    engine = Engine(config, NftablesBackend(config.families))
    engine.apply([Upsert(item) for item in read_documents(first_services(ranges, servers, PORT)).objects])
    engine.sync()
    listed = json.loads(subprocess.run(["nft", "-j", "list", "tables"], capture_output=True, check=True).stdout)
    tables = [(item["table"]["family"], item["table"]["name"]) for item in listed["nftables"] if "table" in item]
    assert sorted(tables) == [("ip", "kproxy"), ("ip6", "kproxy")]

    family = socket.AF_INET6 if ":" in api_server else socket.AF_INET
    with (
        socket.create_server((servers[0], PORT), family=family) as listener,
        socket.create_connection((api_server, 443), timeout=60) as client,
    ):
        accepted, _peer = listener.accept()
        accepted.sendall(b"here")
        assert client.recv(4) == b"here"
        accepted.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((dns, 53), timeout=60)
    with socket.socket(family, socket.SOCK_DGRAM) as question:
        question.settimeout(60)
        question.connect((dns, 53))
        # A datagram of the node's own that a rule rejects is not even sent.
        with pytest.raises((PermissionError, ConnectionRefusedError)):
            question.send(b"?") and question.recv(1)
