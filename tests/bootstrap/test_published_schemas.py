"""The schemas tell right from wrong: each row is a document that a version of kubeadm or kubelet refuses, or takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools import published_schemas
from devtools.bootstrap import ROOT

CASES = ROOT / "tests/cases/20-kubeadm-upgrade-brings-it-back"
NEW, OLD, KUBELET = "kubeadm.k8s.io/v1beta4", "kubeadm.k8s.io/v1beta3", "kubelet.config.k8s.io/v1beta1"
TOKEN = {"bootstrapToken": {"token": "abcdef.0123456789abcdef", "unsafeSkipCAVerification": True}}


def document(version: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, **fields}


RIGHT = [
    document(NEW, "InitConfiguration", skipPhases=["addon/kube-proxy"], timeouts={"kubeletHealthCheck": "4m0s"}),
    document(NEW, "ClusterConfiguration", proxy={"disabled": True}, controlPlaneEndpoint="[fd00::1]:6443"),
    document(NEW, "ClusterConfiguration", networking={"serviceSubnet": "10.96.0.0/12,fd00:10:96::/108"}),
    document(NEW, "UpgradeConfiguration", node={"skipPhases": ["addon/kube-proxy"]}),
    document(NEW, "JoinConfiguration", discovery=TOKEN),
    document(OLD, "InitConfiguration", nodeRegistration={"kubeletExtraArgs": {"node-ip": "192.0.2.1"}}),
    document(KUBELET, "KubeletConfiguration", makeIPTablesUtilChains=False, syncFrequency="1m30s"),
]


@pytest.mark.parametrize("given", RIGHT, ids=lambda item: f"{item['apiVersion']} {item['kind']}")
def test_right(given: dict[str, Any]) -> None:
    assert published_schemas.faults(given) == []


@pytest.mark.parametrize("path", sorted(CASES.glob("expected-*.yaml")), ids=lambda path: path.stem)
def test_what_case_20_expects_is_right(path: Path) -> None:
    assert [published_schemas.faults(item) for item in yaml.safe_load_all(path.read_text())] == [[]] * len(
        list(yaml.safe_load_all(path.read_text()))
    )


WRONG = [
    ("v1beta3 has no switch for kube-proxy", document(OLD, "ClusterConfiguration", proxy={"disabled": True}), "proxy"),
    ("v1beta3 has no upgrades", document(OLD, "UpgradeConfiguration"), "there is no UpgradeConfiguration"),
    ("a field that is not there", document(NEW, "ClusterConfiguration", kubeProxy={}), "kubeProxy"),
    (
        "v1beta4 takes no mapping of arguments",
        document(NEW, "InitConfiguration", nodeRegistration={"kubeletExtraArgs": {}}),
        "array",
    ),
    (
        "v1beta3 takes no list of them",
        document(OLD, "InitConfiguration", nodeRegistration={"kubeletExtraArgs": [{"name": "a", "value": "b"}]}),
        "object",
    ),
    (
        "dashes before a flag",
        document(NEW, "ClusterConfiguration", scheduler={"extraArgs": [{"name": "--v", "value": "2"}]}),
        "--v",
    ),
    ("a number for a string", document(NEW, "ClusterConfiguration", kubernetesVersion=1.34), "kubernetesVersion"),
    (
        "an address in brackets",
        document(NEW, "InitConfiguration", localAPIEndpoint={"advertiseAddress": "[::1]"}),
        "advertiseAddress",
    ),
    (
        "an endpoint with a scheme",
        document(NEW, "ClusterConfiguration", controlPlaneEndpoint="https://a:6443"),
        "controlPlaneEndpoint",
    ),
    (
        "IPv6 without brackets",
        document(NEW, "ClusterConfiguration", controlPlaneEndpoint="fd00::1:6443"),
        "controlPlaneEndpoint",
    ),
    (
        "a blank between ranges",
        document(NEW, "ClusterConfiguration", networking={"podSubnet": "10.0.0.0/8, fd00::/48"}),
        "podSubnet",
    ),
    ("no discovery", document(NEW, "JoinConfiguration"), "discovery"),
    (
        "two discoveries",
        document(NEW, "JoinConfiguration", discovery={**TOKEN, "file": {"kubeConfigPath": "/a"}}),
        "discovery",
    ),
    ("a token of the wrong form", document(NEW, "InitConfiguration", bootstrapTokens=[{"token": "secret"}]), "token"),
    (
        "a text for a switch",
        document(KUBELET, "KubeletConfiguration", makeIPTablesUtilChains="no"),
        "makeIPTablesUtilChains",
    ),
    ("a field of kube-proxy's", document(KUBELET, "KubeletConfiguration", clusterCIDR="10.0.0.0/8"), "clusterCIDR"),
    ("another version", document("kubeadm.k8s.io/v1beta2", "InitConfiguration"), "v1beta2"),
]


@pytest.mark.parametrize(("given", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong(given: dict[str, Any], words: str) -> None:
    (fault,) = published_schemas.faults(given)
    assert words in fault


WRONG_FILES = [
    ("containerd-v2", {"version": 3}, "version"),
    ("containerd-v2", {"version": 2, "disabled_plugins": ["cri"]}, "disabled_plugins"),
    (
        "containerd-v2",
        {"version": 2, "plugins": {"io.containerd.grpc.v1.cri": {"systemd_cgroup": True}}},
        "systemd_cgroup",
    ),
    ("containerd-hosts", {"server": "registry.k8s.io"}, "server"),
    ("containerd-hosts", {"server": "https://a", "host": {"https://b": {"capabilities": ["get"]}}}, "get"),
]


@pytest.mark.parametrize(("name", "content", "words"), WRONG_FILES)
def test_wrong_file(name: str, content: dict[str, Any], words: str) -> None:
    (fault,) = published_schemas.faults_of_file(name, content)
    assert words in fault
