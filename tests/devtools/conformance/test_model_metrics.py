"""Metrics that the model derives: from the service table, and from what it did to packets and flows."""

from __future__ import annotations

from typing import Any

import pytest

from devtools.conformance import population
from devtools.conformance.corpus import parse_case
from devtools.conformance.judge import Circumstances
from devtools.conformance.model_system import ModelSystem
from devtools.conformance.play import FEW, Story, play

PORT = {"name": "dns", "protocol": "UDP", "port": 53}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"namespace": "kube-system", "name": "dns"},
    "spec": {
        "type": "NodePort",
        "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10"],
        "ports": [{**PORT, "nodePort": 30053}],
        "internalTrafficPolicy": "Local",
    },
}
LOOPBACK_PROBE = {
    "from": {"ip": "127.0.0.1", "kind": "node"},
    "to": {"ip": "127.0.0.1", "port": 30053, "protocol": "UDP"},
    "expect": {"verdict": "reject"},
}
FAMILY = {"ip_family": "IPv4"}
REJECTED = "nftables_localhost_nodeport_rejected_packets_total"
NO_LOCAL = "sync_proxy_rules_no_local_endpoints_total"
DELETED = "conntrack_reconciler_deleted_entries_total"


def slice_of(address: str) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "kube-system",
            "name": "dns-1",
            "labels": {"kubernetes.io/service-name": "dns"},
        },
        "addressType": "IPv4",
        "ports": [PORT],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}, "nodeName": "n2"}],
    }


@pytest.mark.parametrize(
    ("name", "labels", "at_start", "after_the_step"),
    [
        (REJECTED, {**FAMILY, "protocol": "UDP"}, FEW, 2 * FEW),
        (REJECTED, {**FAMILY, "protocol": "SCTP"}, 0, 0),
        (REJECTED, {"ip_family": "IPv6", "protocol": "UDP"}, 0, 0),
        (NO_LOCAL, {**FAMILY, "traffic_policy": "internal"}, 1, 1),
        (NO_LOCAL, {**FAMILY, "traffic_policy": "external"}, 0, 0),
        (DELETED, FAMILY, 0, 1),
        (DELETED, {"ip_family": "IPv6"}, 0, 0),
        ("nftables_localhost_nodeport_listeners", FAMILY, 0, 0),
        ("sync_proxy_rules_endpoint_changes_pending", {}, 0, 0),
    ],
)
def test_metrics_follow_the_story(name: str, labels: dict[str, str], at_start: int, after_the_step: int) -> None:
    def sample(value: int) -> dict[str, Any]:
        return {"name": f"kubeproxy_{name}", "labels": labels, "value": value}

    case = parse_case(
        {
            "name": "topic/case",
            "node": {"name": "n1", "zone": None, "ips": {"primary": ["192.0.2.11"], "extra": []}, "pod_cidr": []},
            "config": {
                "nodePortAddresses": ["primary", "localhost"],
                "featureGates": {"KubeProxyNFTablesLocalhostNodePorts": True},
            },
            "objects": [SERVICE, slice_of("10.244.2.1")],
            "probes": [LOOPBACK_PROBE],
            "metrics": [sample(at_start)],
            "conntrack_entries": [
                {"id": "old", "protocol": "UDP", "orig_dst": "10.96.0.10:53", "reply_src": "10.244.2.1:53"}
            ],
            "after": [
                {
                    "step": "the endpoint is replaced",
                    "modify": [slice_of("10.244.2.2")],
                    "probes": [LOOPBACK_PROBE],
                    "metrics": [sample(after_the_step)],
                }
            ],
        }
    )
    story = Story(case, population.doubles(case), Circumstances(case.node.addresses))
    assert list(play(story, ModelSystem(case))) == []


def test_a_metric_that_follows_from_nothing_here_is_an_error() -> None:
    case = parse_case(
        {
            "name": "topic/case",
            "node": {"name": "n1", "zone": None, "ips": {"primary": ["192.0.2.11"], "extra": []}, "pod_cidr": []},
            "config": {},
            "objects": [],
            "probes": [],
        }
    )
    with pytest.raises(ValueError, match="does not know metric kubeproxy_sync_proxy_rules_iptables_total"):
        ModelSystem(case).metric("kubeproxy_sync_proxy_rules_iptables_total", FAMILY)
