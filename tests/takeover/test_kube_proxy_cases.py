"""Cases 19 and 30: is kube-proxy still there, and what did its configuration mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import daemonset, gate, kube_proxy_config

CASES = Path(__file__).parents[1] / "cases"
RUNNING = CASES / "19-kube-proxy-still-running"
CONFIG = CASES / "30-kube-proxy-config-carried-over"


def listeners(node: str) -> list[tuple[str, int, str]]:
    found = []
    for line in (RUNNING / "listening.txt").read_text().splitlines():
        name, address, program = line.split()
        if name == node:
            host, _colon, port = address.rpartition(":")
            found.append((host, int(port), program))
    return found


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((RUNNING / name).read_text()))


@pytest.mark.parametrize("node", objects("nodes.yaml"), ids=lambda node: str(node["metadata"]["name"]))
def test_case_19_refuses_where_kube_proxy_is(node: dict[str, Any]) -> None:
    expect = yaml.safe_load((RUNNING / "expect.yaml").read_text())[node["metadata"]["name"]]
    decision = gate.decide(node, objects("daemonset.yaml"), listeners(node["metadata"]["name"]))
    assert decision.refuse == expect["refuse"]
    if "reason" in expect:
        assert decision.reason == expect["reason"]


def test_case_19_daemonset_goes_when_asked_or_when_all_verified() -> None:
    nodes = ["n1", "n2", "n3"]
    assert not gate.may_delete_daemonset({"n2": True}, nodes, asked=False)
    assert gate.may_delete_daemonset({"n2": True}, nodes, asked=True)
    assert gate.may_delete_daemonset(dict.fromkeys(nodes, True), nodes, asked=False)


def test_case_19_excluding_again_changes_nothing() -> None:
    (item,) = objects("daemonset.yaml")
    assert daemonset.exclude_by_label(item, "example.org/service-proxy") == item


def translation(cores: int = 8) -> kube_proxy_config.Translation:
    return kube_proxy_config.translate(yaml.safe_load((CONFIG / "kube-proxy-config.yaml").read_text()), cores)


def test_case_30_settings_are_carried() -> None:
    expect = yaml.safe_load((CONFIG / "expect.yaml").read_text())["mapped"]
    found = translation()
    assert found.config["detectLocalMode"] == "InterfaceNamePrefix"
    assert found.config["detectLocal"] == {"interfaceNamePrefix": "veth"}
    assert found.config["nodePortAddresses"] == expect["nodePortAddresses"]
    assert found.config["hostnameOverride"] == "n1.example.org"
    assert found.config["nftables"] == {"masqueradeAll": expect["masqueradeAll"], "masqueradeBit": 14}
    assert (found.healthz_bind_address, found.metrics_bind_address) == ("0.0.0.0:10256", "127.0.0.1:10249")


@pytest.mark.parametrize(("cores", "entries"), [(2, 262144), (4, 262144), (8, 524288), (64, 1048576)])
def test_case_30_conntrack_becomes_sysctls(cores: int, entries: int) -> None:
    expect = yaml.safe_load((CONFIG / "expect.yaml").read_text())["mapped"]["conntrack"]
    prefix = "net.netfilter.nf_conntrack_"
    assert translation(cores).sysctls == {
        prefix + "max": entries,
        prefix + "tcp_timeout_established": expect["tcp_timeout_established"],
        prefix + "tcp_timeout_close_wait": expect["tcp_timeout_close_wait"],
        prefix + "tcp_be_liberal": expect["tcp_be_liberal"],
    }


def test_case_30_losses_are_named() -> None:
    found = translation()
    assert {(item.field, item.value) for item in found.lost} == {
        ("ipvs.scheduler", "lc"),
        ("nodePortAddresses", "127.0.0.0/8"),
        ("featureGates.SomeOldGate", True),
    }
    reasons = {item.field: item for item in found.findings}
    for field in ("ipvs.strictARP", "ipvs.excludeCIDRs"):
        assert reasons[field].outcome == kube_proxy_config.NOT_NEEDED
        assert "never bound to an interface" in reasons[field].note
    assert reasons["iptables.localhostNodePorts"].outcome == kube_proxy_config.NOT_NEEDED


def test_case_30_what_is_carried_is_accepted_by_the_proxy() -> None:
    config = ProxyConfig.from_mapping(translation().config)
    assert config.node_name == "n1.example.org"
    assert config.interface_name_prefix == "veth"
