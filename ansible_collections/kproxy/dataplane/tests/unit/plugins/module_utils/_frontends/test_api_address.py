"""An API server that is reached through a Service: told by what the service table and the ranges hold."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.api_address import through_services
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.tests.unit.plugins.module_utils._frontends.objects import (
    config,
    service,
    upserts,
)

API: dict[str, Any] = {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}
CIDRS = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "ServiceCIDR",
    "metadata": {"name": "kubernetes"},
    "spec": {"cidrs": ["10.96.0.0/12", "fd00:96::/112"]},
}

SERVERS = [
    # server, a word of what is said
    ("https://10.96.0.1:443", "is the Service default/kubernetes"),
    ("https://10.96.0.1", "is the Service default/kubernetes"),
    ("https://198.51.100.9", "is the Service default/kubernetes"),
    ("https://10.96.0.1:6443", "is in the service range 10.96.0.0/12"),
    ("https://[fd00:96::1]:6443", "is in the service range fd00:96::/112"),
    ("https://192.0.2.11:6443", ""),
    ("https://[2001:db8::11]:6443", ""),
    ("https://api.example.org:6443", ""),
    ("/etc/kproxy/manifests", ""),
]


@pytest.mark.parametrize(("server", "said"), SERVERS)
def test_an_api_server_behind_a_service_is_named(server: str, said: str) -> None:
    table = ServiceTable(config())
    table.apply(upserts(service("kubernetes", "default", externalIPs=["198.51.100.9"], **API), CIDRS))
    found = through_services([server, server], table)
    assert len(found) == (1 if said else 0)
    assert said in "".join(found)
