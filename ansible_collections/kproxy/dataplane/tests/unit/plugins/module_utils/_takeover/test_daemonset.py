# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes a DaemonSet selects."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import daemonset, gate

KEY = "kproxy.dataplane/service-proxy"
NODE = {"metadata": {"name": "n1", "labels": {"disk": "ssd", "cores": "8"}}, "spec": {}}


def kube_proxy(**pod: Any) -> dict[str, Any]:
    return {"metadata": {"name": "kube-proxy", "namespace": "kube-system"}, "spec": {"template": {"spec": pod}}}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def on_label(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


SELECTS = [
    ("everything", {}, True),
    ("node selector", {"nodeSelector": {"disk": "ssd"}}, True),
    ("other node selector", {"nodeSelector": {"disk": "hdd"}}, False),
    ("in", {"affinity": affinity(on_label("disk", "In", "ssd"))}, True),
    ("not in", {"affinity": affinity(on_label("disk", "NotIn", "ssd"))}, False),
    ("not in of an absent label", {"affinity": affinity(on_label("gpu", "NotIn", "yes"))}, True),
    ("greater", {"affinity": affinity(on_label("cores", "Gt", "4"))}, True),
    ("less", {"affinity": affinity(on_label("cores", "Lt", "4"))}, False),
    ("greater of no number", {"affinity": affinity(on_label("disk", "Gt", "4"))}, False),
    ("one of two terms", {"affinity": affinity(on_label("x", "Exists"), on_label("disk", "Exists"))}, True),
    ("empty term", {"affinity": affinity({})}, False),
    ("no terms", {"affinity": affinity()}, False),
    (
        "by name",
        {"affinity": affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]})},
        False,
    ),
]


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in SELECTS], ids=[row[0] for row in SELECTS])
def test_selects(pod: dict[str, Any], expected: bool) -> None:
    assert daemonset.selects(kube_proxy(**pod), NODE) == expected


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}
TOLERATIONS = [
    ("none", [], False),
    ("all", [{"operator": "Exists"}], True),
    ("key", [{"key": "gpu", "operator": "Exists"}], True),
    ("value", [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}], True),
    ("other value", [{"key": "gpu", "value": "no"}], False),
    ("other effect", [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}], False),
]


@pytest.mark.parametrize(("tolerations", "expected"), [row[1:] for row in TOLERATIONS], ids=[r[0] for r in TOLERATIONS])
def test_taints(tolerations: list[dict[str, Any]], expected: bool) -> None:
    node = {**NODE, "spec": {"taints": [TAINT]}}
    assert daemonset.selects(kube_proxy(tolerations=tolerations), node) == expected


def test_a_not_ready_node_is_still_selected() -> None:
    node = {**NODE, "spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}}
    assert daemonset.selects(kube_proxy(), node)


@pytest.mark.parametrize("pod", [{}, {"affinity": affinity(on_label("disk", "Exists"), on_label("a", "Exists"))}])
def test_excluding_by_label_takes_only_labelled_nodes_out(pod: dict[str, Any]) -> None:
    before = kube_proxy(**pod)
    after = daemonset.exclude_by_label(before, KEY)
    labelled = {"metadata": {"name": "n1", "labels": {**NODE["metadata"]["labels"], KEY: "kproxy"}}}  # type: ignore[dict-item]
    assert daemonset.selects(before, NODE)
    assert daemonset.selects(after, NODE)
    assert not daemonset.selects(after, labelled)
    assert daemonset.exclude_by_label(after, KEY) == after
    assert before == kube_proxy(**pod)


def test_gate_knows_static_pods_and_renamed_daemonsets() -> None:
    renamed = kube_proxy(containers=[{"name": "p", "command": ["/usr/local/bin/kube-proxy", "--config=x"]}])
    renamed["metadata"]["name"] = "proxy-arm"
    decision = gate.decide(NODE, [renamed], processes=[7], static_pods=["/etc/kubernetes/manifests/kube-proxy.yaml"])
    assert decision.refuse
    assert decision.reasons == (
        "DaemonSet kube-system/proxy-arm runs kube-proxy and still selects this node",
        "kubelet runs kube-proxy from /etc/kubernetes/manifests/kube-proxy.yaml",
        "a kube-proxy process runs (7)",
    )


def test_gate_lets_our_own_health_port_be() -> None:
    assert not gate.decide(NODE, [], [("*", 10256, "kproxyd")]).refuse


IMAGE = "registry.example.org/k8s/kube-proxy"
RECOGNISED = [
    ("by image", {"containers": [{"name": "p", "image": f"{IMAGE}:v1.34.1"}]}, True),
    ("by image of one machine", {"containers": [{"name": "p", "image": f"{IMAGE}-arm64@sha256:0"}]}, True),
    ("in a script", {"containers": [{"name": "p", "command": ["/bin/sh", "-c", "exec kube-proxy --v=2 2>&1"]}]}, True),
    ("another program in it", {"containers": [{"name": "p", "image": f"{IMAGE}:v1", "command": ["sleep"]}]}, False),
    ("an exporter for it", {"containers": [{"name": "p", "image": "example.org/kube-proxy-exporter:v1"}]}, False),
    (
        "on Windows nodes",
        {"containers": [{"name": "p", "image": IMAGE}], "nodeSelector": {"kubernetes.io/os": "windows"}},
        False,
    ),
]


@pytest.mark.parametrize(("pod", "expected"), [row[1:] for row in RECOGNISED], ids=[row[0] for row in RECOGNISED])
def test_kube_proxy_is_recognised(pod: dict[str, Any], expected: bool) -> None:
    item = kube_proxy(**pod)
    item["metadata"] = {"name": "proxy", "namespace": "kube-system"}
    assert daemonset.is_kube_proxy(item) == expected
