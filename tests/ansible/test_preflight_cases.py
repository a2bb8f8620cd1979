# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The hosts of case 27, the foreign firewall of case 15 and the mesh of case 24, and what should be said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.pods_on_node import containers_by_pod
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.base_chains import from_iptables_save
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.examine import blocking, examine
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.findings import Finding, Sysctl
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts, Options

CASES = Path(__file__).parents[1] / "cases"
HOSTS = yaml.safe_load((CASES / "27-node-preflight-facts" / "facts.yaml").read_text(encoding="utf-8"))

SYSCTL_OF_FACT = {
    "nf_conntrack_max": "net.netfilter.nf_conntrack_max",
    "tcp_be_liberal": "net.netfilter.nf_conntrack_tcp_be_liberal",
    "ip_local_port_range": "net.ipv4.ip_local_port_range",
    "ip_local_reserved_ports": "net.ipv4.ip_local_reserved_ports",
}

BRIDGE = (Sysctl("net.bridge.bridge-nf-call-iptables", "1"), Sysctl("net.bridge.bridge-nf-call-ip6tables", "1"))
CONNTRACK_131072 = (Sysctl("net.netfilter.nf_conntrack_max", "131072"),)
RESERVED = (Sysctl("net.ipv4.ip_local_reserved_ports", "30000-32767"),)

# host, check, result, words of the message, sysctls to set
EXPECTED = [
    ("rhel8", "kernel", "block", "older than 5.13", ()),
    ("rhel8", "nft", "ok", "", ()),
    ("rhel9", "kernel", "ok", "", ()),
    ("rhel9", "nft", "ok", "", ()),
    ("rhel9", "tcp_be_liberal", "warn", "preflight_tcp_be_liberal", ()),
    ("rhel9", "conntrack_max", "ok", "262144", ()),
    ("ubuntu2204-bridge", "kernel", "ok", "", ()),
    ("ubuntu2204-bridge", "br_netfilter", "fix", "cni0", BRIDGE),
    ("ubuntu2204-bridge", "conntrack_max", "fix", "131072", CONNTRACK_131072),
    ("ubuntu2204-bridge", "tcp_be_liberal", "warn", "", ()),
    ("debian12-ports", "tcp_be_liberal", "ok", "not needed", ()),
    ("debian12-ports", "ip_local_reserved_ports", "fix", "30000-32767", RESERVED),
    ("debian12-ports", "conntrack_max", "ok", "4194304", ()),
    ("ubuntu2004-backport", "kernel", "ok", "", ()),
    ("ubuntu2004-backport", "nft", "block", "older than 1.0.1", ()),
    ("lxc-node", "tcp_be_liberal", "ok", "not needed", ()),
    ("lxc-node", "conntrack_max", "warn", "65536, which is low", ()),
    ("ebpf-node", "nft", "skip", "", ()),
    ("ebpf-node", "kernel", "block", "lacks btf", ()),
]


def facts_of(host: str) -> tuple[NodeFacts, Options]:
    """Translate a host of the case into the facts and options of the collection."""
    given: dict[str, Any] = dict(HOSTS["hosts"][host])
    backend = given.pop("backend", HOSTS["defaults"]["backend"])
    sysctls = {SYSCTL_OF_FACT[name]: given.pop(name) for name in list(given) if name in SYSCTL_OF_FACT}
    if given.get("br_netfilter") == "absent":
        given["br_netfilter"] = False
    options = {**HOSTS["defaults"], "backend": backend}
    return NodeFacts.from_mapping({**given, "sysctls": sysctls}), Options.from_mapping(options)


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    """Index the findings by the name of their check."""
    return {finding.check: finding for finding in findings}


@pytest.mark.parametrize(
    ("host", "check", "result", "words", "sysctls"), EXPECTED, ids=[f"{row[0]}-{row[1]}" for row in EXPECTED]
)
def test_host(host: str, check: str, result: str, words: str, sysctls: tuple[Sysctl, ...]) -> None:
    finding = by_check(examine(*facts_of(host)))[check]
    assert (finding.result, finding.sysctls) == (result, sysctls), finding.message
    assert words in finding.message


def test_every_host_of_the_case_has_a_row() -> None:
    assert {row[0] for row in EXPECTED} == set(HOSTS["hosts"])


@pytest.mark.parametrize(
    ("host", "override", "refused_by"),
    [
        ("rhel8", [], ["kernel"]),
        ("rhel8", ["kernel"], []),
        ("ubuntu2004-backport", [], ["nft"]),
        ("ubuntu2004-backport", ["nft"], []),
        ("ebpf-node", [], ["kernel"]),
        ("ebpf-node", ["kernel"], ["kernel"]),
        ("lxc-node", [], []),
        ("debian12-ports", [], []),
    ],
)
def test_who_is_refused(host: str, override: list[str], refused_by: list[str]) -> None:
    assert [finding.check for finding in blocking(examine(*facts_of(host)), override)] == refused_by


def test_liberal_tracking_is_set_once_the_operator_asks() -> None:
    facts, _options = facts_of("rhel9")
    finding = by_check(examine(facts, Options(tcp_be_liberal=True)))["tcp_be_liberal"]
    assert finding.sysctls == (Sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "1"),)


def test_chains_that_drop_are_named_and_left_alone() -> None:
    case = CASES / "15-forward-drop-elsewhere"
    text = (case / "iptables-save.txt").read_text(encoding="utf-8")
    wanted = yaml.safe_load((case / "expect.yaml").read_text(encoding="utf-8"))["preflight"]
    facts = NodeFacts(kernel="6.1.0", nft="1.0.6", base_chains=tuple(from_iptables_save(text)))
    found = by_check(examine(facts, Options()))

    forward = found["forward_drop"]
    assert forward.result == wanted["result"]
    assert f"{wanted['names']['table']}/{wanted['names']['chain']}" in forward.message
    assert f"policy {wanted['names']['policy']}" in forward.message
    assert (found["input_drop"].result, "health check port" in found["input_drop"].message) == ("warn", True)
    assert not any(finding.sysctls or finding.modules or finding.packages for finding in (forward, found["input_drop"]))
    assert blocking(found.values()) == []


@pytest.mark.parametrize(("host_namespace_only", "result"), [(False, "warn"), (True, "ok")])
def test_case_24_names_the_pods_whose_mesh_would_be_passed_by(
    tmp_path: Path, host_namespace_only: bool, result: str
) -> None:
    documents = yaml.safe_load_all((CASES / "24-socket-lb-with-mesh" / "objects.yaml").read_text(encoding="utf-8"))
    pods = [document for document in documents if document["kind"] == "Pod"]
    assert pods
    for pod in pods:  # as the kubelet of that node lays them out
        name = f"{pod['metadata']['namespace']}_{pod['metadata']['name']}_6b5e"
        for container in pod["spec"]["containers"]:
            (tmp_path / name / container["name"]).mkdir(parents=True)
    facts = NodeFacts.from_mapping({"kernel": "6.1", "containers": containers_by_pod(str(tmp_path))})
    options = Options.from_mapping({"backend": "ebpf", "host_namespace_only": host_namespace_only})
    finding = by_check(examine(facts, options))["socket_translation"]
    assert finding.result == result
    if result == "warn":
        assert "shop/cart-0" in finding.message
        assert "istio-proxy" in finding.message
