"""What bootstrap promises: kube-proxy is skipped in all three places, and Services work before anybody needs one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from testinfra.host import Host

FOLDER = "/etc/kubernetes/kproxy"
CONTROL_PLANE = ("cp-1", "cp-2")


def asked(host: Host, program: str) -> list[str]:
    lines: list[str] = host.file("/var/log/asked").content_string.splitlines()
    return [line for line in lines if line.startswith(program)]


def documents(host: Host, name: str) -> dict[str, dict[str, Any]]:
    text = host.file(f"{FOLDER}/{name}").content_string
    return {document["kind"]: document for document in yaml.safe_load_all(text)}


def test_kube_proxy_is_skipped_at_init_and_upgrade(host: Host) -> None:
    init = documents(host, "init.yaml")
    assert init["InitConfiguration"]["skipPhases"] == ["addon/kube-proxy"]
    assert init["ClusterConfiguration"]["proxy"] == {"disabled": True}
    upgrade = documents(host, "upgrade.yaml")
    assert list(upgrade) == ["UpgradeConfiguration"]
    for phase in ("apply", "node"):
        assert upgrade["UpgradeConfiguration"][phase] == {"skipPhases": ["addon/kube-proxy"]}


def test_kubelet_makes_no_chains(host: Host) -> None:
    assert documents(host, "init.yaml")["KubeletConfiguration"]["makeIPTablesUtilChains"] is False


def test_configuration_was_validated_before_it_was_used(host: Host) -> None:
    verbs = [line.split()[1] for line in asked(host, "kubeadm") if line.split()[1] in ("config", "init", "join")]
    assert verbs[0] == "config"


def test_frontends_were_in_the_kernel_before_kubelet_started(host: Host) -> None:
    started = [line for line in asked(host, "kubeadm") if " --config " in line and line.split()[1] in ("init", "join")]
    assert len(started) == 1
    assert started[0].endswith("| tables 2")


def test_only_the_first_node_makes_the_cluster(host: Host) -> None:
    made = [line for line in asked(host, "kubeadm init") if " --config " in line]
    assert bool(made) == (host.check_output("hostname") == "cp-1")


def test_joining(host: Host) -> None:
    name = host.check_output("hostname")
    if name == "cp-1":
        assert not host.file("/var/log/join.yaml").exists
        return
    join = yaml.safe_load(host.file("/var/log/join.yaml").content_string)
    assert join["discovery"]["bootstrapToken"]["apiServerEndpoint"] == "10.77.0.1:6443"
    assert join["discovery"]["bootstrapToken"]["token"] == "abcdef.0123456789abcdef"
    assert ("controlPlane" in join) == (name in CONTROL_PLANE)
    assert not host.file(f"{FOLDER}/join.yaml").exists


def test_credentials_are_those_of_kube_proxys_user(host: Host) -> None:
    kubeconfig = json.loads(host.file("/etc/kproxy/kubeconfig").content_string)
    servers = kubeconfig["clusters"][0]["cluster"]["extensions"][0]["extension"]["servers"]
    assert servers == ["https://10.77.0.1:6443", "https://10.77.0.11:6443", "https://10.77.0.12:6443"]
    if host.check_output("hostname") == "cp-1":
        subject = host.check_output(f"openssl x509 -noout -subject -in {FOLDER}/kube-proxy.crt")
        assert subject.replace(" ", "") == "subject=CN=system:kube-proxy"


@pytest.mark.parametrize("path", ["healthz", "livez"])
def test_the_sidecar_is_in_step_with_the_api_server(host: Host, path: str) -> None:
    assert host.check_output(f"curl -s -o /dev/null -w %{{http_code}} http://127.0.0.1:10256/{path}") == "200"
    services = json.loads(host.check_output("kproxyctl services -o json"))
    assert any("shop/frontend" in json.dumps(row) for row in services)


def test_no_kube_chain_at_all(host: Host) -> None:
    for command in ("iptables-legacy-save", "iptables-nft-save", "ip6tables-legacy-save", "ip6tables-nft-save"):
        assert "KUBE-" not in host.check_output(command)
