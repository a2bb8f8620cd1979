# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Named checks and their reports."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from ansible_collections.kproxy.dataplane.plugins.module_utils._verification import report
from ansible_collections.kproxy.dataplane.plugins.module_utils._verification.checks import CHECKS, Check, Evidence, run

COUNTS = {"kube-proxy": 0, "kubelet": 5}
STATUS = {
    "inStep": True,
    "healthy": True,
    "nodeEligible": True,
    "generation": 7,
    "sources": [{"kind": "Service", "connected": True}],
    "refused": [],
}


def row(kind: str, service: str = "shop/web:http", client: str = "node", **more: Any) -> dict[str, Any]:
    """Return a row of the probe; wrong: what is wrong with its verdict."""
    faults = [{"about": more.pop("about", "verdict"), "message": message} for message in more.pop("wrong", ())]
    known = {"kind": kind, "service": service, "client": client, "address": "x", "expected": "dnat", "protocol": "TCP"}
    return {**known, "judged": ["verdict"], "faults": faults, **more}


ALL = ["verdict", "source", "hairpin", "affinity", "spread"]


GOOD: dict[str, Any] = {
    "status": STATUS,
    "agreement": {"agrees": True},
    "residue": {"counts": COUNTS, "kube_proxy_running": []},
    "probe": {
        "results": [
            row("cluster-ip", judged=ALL),
            row("cluster-ip", protocol="SCTP"),
            row("cluster-ip", "kube-system/kube-dns:dns", "pod-1"),
            row("cluster-ip", "default/kubernetes:https"),
            row("node-port"),
            row("external-ip"),
            row("load-balancer", expected="drop"),
            row("cluster-ip", "shop/cache:redis", expected="reject"),
        ],
        "conntrack": {"entries": 120, "maximum": 131072},
        "not_dialled": [],
    },
    "cluster": {"selected": False, "pods": [], "daemonsets": ["kube-system/kube-proxy"], "node_ready": True},
    "preflight": [
        {"check": "forward_drop", "result": "ok", "message": ""},
        {"check": "conntrack_max", "result": "ok", "message": ""},
        {"check": "ipv4_forwarding", "result": "ok", "message": ""},
        {"check": "br_netfilter", "result": "ok", "message": ""},
    ],
}


def finding(check: str, result: str) -> dict[str, str]:
    return {"check": check, "result": result, "message": "m"}


def faulty(about: str) -> dict[str, Any]:
    return {"probe": {"results": [row("cluster-ip", judged=ALL, about=about, wrong=["x"])]}}


def conntrack(entries: int, result: str = "ok") -> dict[str, Any]:
    size = {"entries": entries, "maximum": 1000}
    return {"probe": {"conntrack": size}, "preflight": [finding("conntrack_max", result)]}


def results(**changed: Any) -> dict[str, str]:
    return {check.name: check.result for check in run(Evidence(**{**GOOD, **changed}))}


def test_a_good_node_passes_every_check() -> None:
    assert len(CHECKS) >= 14
    # Asked of a node with a canary alone.
    assert results()["kube-proxy serves the rest"] == "skip"
    assert {result for name, result in results().items() if name != "kube-proxy serves the rest"} == {"ok"}


CANARY = {**STATUS, "canary": "selector app=web"}


@pytest.mark.parametrize(
    ("running", "objects", "rest"), [([7], 40, "ok"), ([], 40, "fail"), ([7], 0, "fail")]
)  # fmt: skip
def test_with_a_canary_kube_proxy_has_to_serve_the_rest(running: list[int], objects: int, rest: str) -> None:
    residue = {"counts": {"kube-proxy": objects}, "kube_proxy_running": running}
    found = results(status=CANARY, residue=residue)
    assert found["kube-proxy serves the rest"] == rest
    assert found["kube-proxy does not run"] == found["kube-proxy left nothing"] == "skip"


BAD = [
    ("kube-proxy does not run", {"residue": {"counts": COUNTS, "kube_proxy_running": [7]}}, "fail"),
    ("kube-proxy left nothing", {"residue": {"counts": {"kube-proxy": 3}, "kube_proxy_running": []}}, "fail"),
    ("kube-proxy left nothing", {"residue": {"counts": {"kube-proxy": 0}, "saved": ["/etc/x holds"]}}, "warn"),
    ("sidecar is in step", {"status": {**STATUS, "inStep": False, "waitingFor": ["Node"]}}, "fail"),
    ("sidecar is healthy", {"status": {**STATUS, "healthy": False}}, "fail"),
    ("sources are connected", {"status": {**STATUS, "sources": [{"kind": "Node", "connected": False}]}}, "fail"),
    ("node is eligible", {"status": {**STATUS, "nodeEligible": False}}, "warn"),
    ("every object was understood", {"status": {**STATUS, "refused": ["x"]}}, "warn"),
    ("setup needs no attention", {"status": {**STATUS, "problems": ["the client certificate ends"]}}, "warn"),
    ("kernel holds what is wanted", {"agreement": {"agrees": False, "elements": 2}}, "fail"),
    ("NodePorts", {"probe": {"results": [row("node-port", wrong=["was led nowhere"])]}}, "fail"),
    ("cluster DNS", {"probe": {"results": [row("cluster-ip", "kube-system/kube-dns:dns", wrong=["x"])]}}, "fail"),
    ("kube-proxy is not scheduled here", {"cluster": {**GOOD["cluster"], "selected": True}}, "fail"),
    ("kube-proxy is not scheduled here", {"cluster": {**GOOD["cluster"], "pods": ["kube-proxy-x"]}}, "fail"),
    ("node is ready", {"cluster": {**GOOD["cluster"], "node_ready": False}}, "warn"),
    ("endpoints answer", {"probe": {"results": [row("cluster-ip", silent=["10.244.3.5:8080"])]}}, "warn"),
    ("endpoints answer", {"probe": {"results": [row("cluster-ip", protocol="UDP")]}}, "skip"),
    ("SCTP", {"probe": {"results": [row("cluster-ip", protocol="SCTP", wrong=["x"])]}}, "fail"),
    ("SCTP", {"probe": {"results": [], "not_dialled": ["SCTP: this kernel does not speak SCTP"]}}, "skip"),
    ("clients are seen as they should", faulty("source"), "fail"),
    ("pods reach themselves", faulty("hairpin"), "fail"),
    ("affinity holds", faulty("affinity"), "fail"),
    ("endpoints get even shares", faulty("spread"), "fail"),
    ("cluster IPs from the node", faulty("spread"), "ok"),
    ("connection table has room", conntrack(700), "ok"),
    ("connection table has room", conntrack(850), "warn"),
    ("connection table has room", conntrack(960), "fail"),
    ("connection table has room", conntrack(10, "fix"), "warn"),
    ("kernel settings suit Services", {"preflight": [finding("br_netfilter", "fix")]}, "warn"),
    ("no other chain drops", {"preflight": [{"check": "input_drop", "result": "warn", "message": "m"}]}, "warn"),
    ("forwarding is on", {"preflight": [{"check": "ipv6_forwarding", "result": "block", "message": "m"}]}, "fail"),
]


@pytest.mark.parametrize(("name", "changed", "result"), BAD, ids=[f"{entry[0]}, {entry[2]}" for entry in BAD])
def test_what_is_wrong_is_found(name: str, changed: dict[str, Any], result: str) -> None:
    assert results(**changed)[name] == result


def test_parts_that_were_not_asked_for_are_skipped() -> None:
    found = run(Evidence({}, {}, {}, {}, ()))
    assert {check.result for check in found} == {"skip"}


CHECKED = [
    Check("a", "ok", "fine"),
    Check("bb", "fail", "not <well>"),
    Check("c", "skip", "none"),
    Check("d", "warn", "w"),
]


def test_table() -> None:
    assert report.table(CHECKED) == [
        "ok    a   fine",
        "fail  bb  not <well>",
        "skip  c   none",
        "warn  d   w",
        "2 of 3 hold, 1 with a warning, 1 skipped",
    ]


def test_junit() -> None:
    suite = ElementTree.fromstring(report.junit("n1", CHECKED))
    assert suite.attrib == {"name": "kproxy.dataplane.verify.n1", "tests": "4", "failures": "1", "skipped": "1"}
    failure = suite.find("testcase[@name='bb']/failure")
    assert failure is not None
    assert failure.get("message") == "not <well>"
