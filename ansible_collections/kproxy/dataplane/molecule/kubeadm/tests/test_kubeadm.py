"""What bootstrap promises: kube-proxy is skipped in all three places, and Services work before anybody needs one."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
import yaml
from testinfra.host import Host

from devtools import published_schemas

FOLDER = "/etc/kubernetes/kproxy"
CONTROL_PLANE = ("cp-1", "cp-2")
NUMBERS = {"cp-1": 11, "cp-2": 12, "gpu-a": 21}


def name_of(host: Host) -> str:
    name: str = host.check_output("hostname")
    return name


def asked(host: Host, program: str) -> list[str]:
    lines: list[str] = host.file("/var/log/asked").content_string.splitlines()
    return [line for line in lines if line.startswith(program)]


def documents(host: Host, path: str) -> dict[str, dict[str, Any]]:
    """Return the documents of a file by kind; each must be one that its reader knows."""
    found = list(yaml.safe_load_all(host.file(path).content_string))
    assert [published_schemas.faults(document) for document in found] == [[]] * len(found)
    return {document["kind"]: document for document in found}


def test_kube_proxy_is_skipped_at_init_and_upgrade(host: Host) -> None:
    init = documents(host, f"{FOLDER}/init.yaml")
    assert init["InitConfiguration"]["skipPhases"] == ["addon/kube-proxy"]
    assert init["ClusterConfiguration"]["proxy"] == {"disabled": True}
    upgrade = documents(host, f"{FOLDER}/upgrade.yaml")
    assert list(upgrade) == ["UpgradeConfiguration"]
    for phase in ("apply", "node"):
        assert upgrade["UpgradeConfiguration"][phase] == {"skipPhases": ["addon/kube-proxy"]}


def test_kubelet_makes_no_chains(host: Host) -> None:
    assert documents(host, f"{FOLDER}/init.yaml")["KubeletConfiguration"]["makeIPTablesUtilChains"] is False


def test_steps_are_taken_in_order_and_once(host: Host) -> None:
    verbs = [" ".join(line.split(" --config ")[0].split()[1:3]) for line in asked(host, "kubeadm")]
    steps = [verb for verb in verbs if verb in ("config validate", "init --dry-run", "init", "join")]
    validated = ["config validate"]
    joined = [*validated, "config validate", "join"]
    wanted = {"cp-1": [*validated, "init --dry-run", "init"]}.get(name_of(host), joined)
    # The second run asks again whether the configuration is right, and nothing else.
    assert steps == [*wanted, *validated]


def test_the_rehearsal_left_nothing(host: Host) -> None:
    if name_of(host) == "cp-1":
        folder = host.file("/var/log/rehearsed-in").content_string.strip()
        assert folder.startswith("/")
        assert not host.file(folder).exists
    else:
        assert not host.file("/var/log/rehearsed-in").exists


def test_frontends_were_in_the_kernel_before_kubelet_started(host: Host) -> None:
    starts = (["init", "--config"], ["join", "--config"])
    started = [line for line in asked(host, "kubeadm") if line.split()[1:3] in starts]
    assert [line.split(" | ")[1] for line in started] == ["api-server, dns"]


def test_joining(host: Host) -> None:
    name, path = name_of(host), "/var/log/judged-join.yaml"
    assert not host.file(f"{FOLDER}/join.yaml").exists
    if name == "cp-1":
        assert not host.file(path).exists
        return
    join = documents(host, path)["JoinConfiguration"]
    assert join["discovery"]["bootstrapToken"]["apiServerEndpoint"] == "10.77.0.1:6443"
    assert join["discovery"]["bootstrapToken"]["token"] == "abcdef.0123456789abcdef"
    assert ("controlPlane" in join) == (name in CONTROL_PLANE)
    (argument,) = join["nodeRegistration"]["kubeletExtraArgs"]
    assert argument == {"name": "node-ip", "value": f"fd00:77::{NUMBERS[name]},10.77.0.{NUMBERS[name]}"}


def test_containerd_uses_the_cgroups_that_kubelet_does_and_the_mirrors(host: Host) -> None:
    config = tomllib.loads(host.file("/etc/containerd/config.toml").content_string)
    assert published_schemas.faults_of_file("containerd-v2", config) == []
    runtime = config["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["runc"]
    assert runtime["options"]["SystemdCgroup"] is True
    hosts = tomllib.loads(host.file("/etc/containerd/certs.d/registry.k8s.io/hosts.toml").content_string)
    assert published_schemas.faults_of_file("containerd-hosts", hosts) == []
    assert list(hosts["host"]) == ["https://mirror.example.org"]
    assert host.service("containerd").is_running
    assert host.service("containerd").is_enabled
    # Once as its package starts it, once with its configuration; the second run changes nothing.
    assert asked(host, "containerd").count("containerd ") == 2


def test_credentials_are_those_of_kube_proxys_user(host: Host) -> None:
    kubeconfig = json.loads(host.file("/etc/kproxy/kubeconfig").content_string)
    servers = kubeconfig["clusters"][0]["cluster"]["extensions"][0]["extension"]["servers"]
    assert servers == ["https://10.77.0.1:6443", "https://[fd00:77::11]:6443", "https://[fd00:77::12]:6443"]
    if name_of(host) == "cp-1":
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
