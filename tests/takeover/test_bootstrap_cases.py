"""Cases 20 and 21: kube-proxy stays away over upgrades, and nothing needs a Service before Services work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap import endpoint, kubeadm

CASES = Path(__file__).parents[1] / "cases"
KUBEADM = CASES / "20-kubeadm-upgrade-brings-it-back"
ENDPOINT = CASES / "21-bootstrap-needs-real-endpoint"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("name", ["kubeadm-init.yaml", "kubeadm-init-v1beta3.yaml"])
def test_case_20_init(name: str) -> None:
    expected = documents(KUBEADM / name.replace("kubeadm-init", "expected-init"))
    amended = kubeadm.amend(documents(KUBEADM / name))
    assert amended.documents == expected
    assert [list(item) for item in amended.documents] == [list(item) for item in expected]
    assert kubeadm.amend(amended.documents).documents == expected
    assert bool(amended.warnings) == ("v1beta3" in name)


def test_case_20_v1beta3_says_what_is_lost() -> None:
    warnings = kubeadm.amend(documents(KUBEADM / "kubeadm-init-v1beta3.yaml")).warnings
    assert "at every kubeadm upgrade" in warnings[0]
    assert "KubeProxyConfiguration document was dropped" in warnings[1]


def test_case_20_stored_configuration() -> None:
    (config_map,) = documents(KUBEADM / "kubeadm-config-cm.yaml")
    stored = yaml.safe_load(config_map["data"]["ClusterConfiguration"])
    (amended,) = kubeadm.amend_stored(stored).documents
    assert amended == {**stored, "proxy": {"disabled": True}}
    assert kubeadm.amend_stored(amended).documents == [amended]


def test_case_20_upgrade_file_holds_nothing_but_the_upgrade() -> None:
    (document,) = kubeadm.upgrade_only(documents(KUBEADM / "kubeadm-init.yaml"))
    assert document["kind"] == "UpgradeConfiguration"
    assert document["apply"]["skipPhases"] == document["node"]["skipPhases"] == ["addon/kube-proxy"]


BROKEN = [
    ("nothing", [], "no kubeadm document"),
    (
        "other documents",
        [{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}],
        "no kubeadm",
    ),
    (
        "mixed",
        [
            {"kind": "InitConfiguration", "apiVersion": kubeadm.V1BETA4},
            {"kind": "ClusterConfiguration", "apiVersion": kubeadm.V1BETA3},
        ],
        "several versions",
    ),
    (
        "misspelt kind",
        [{"kind": "initConfiguration", "apiVersion": kubeadm.V1BETA4}],
        "did you mean InitConfiguration?",
    ),
    (
        "phases as a text",
        [{"kind": "InitConfiguration", "apiVersion": kubeadm.V1BETA4, "skipPhases": "addon/kube-proxy"}],
        "InitConfiguration.skipPhases is 'addon/kube-proxy'; write it as a list",
    ),
    ("too old", [{"kind": "InitConfiguration", "apiVersion": "kubeadm.k8s.io/v1beta2"}], "not supported"),
]


@pytest.mark.parametrize(("given", "message"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_documents_that_cannot_be_amended(given: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(kubeadm.KubeadmError, match=message):
        kubeadm.amend(given)


def test_keys_without_a_value_are_filled() -> None:
    empty: list[dict[str, Any]] = [
        {"kind": "InitConfiguration", "apiVersion": kubeadm.V1BETA4, "skipPhases": None},
        {"kind": "UpgradeConfiguration", "apiVersion": kubeadm.V1BETA4, "apply": None, "node": {"skipPhases": None}},
    ]
    init, upgrade = kubeadm.amend(empty).documents
    assert init["skipPhases"] == ["addon/kube-proxy"]
    assert upgrade["apply"] == upgrade["node"] == {"skipPhases": ["addon/kube-proxy"]}


EXPECT = yaml.safe_load((ENDPOINT / "expect.yaml").read_text())


@pytest.mark.parametrize("name", [name for name in EXPECT if name != "steps"])
def test_case_21_kubeconfig(name: str) -> None:
    (kubeconfig,) = documents(ENDPOINT / name)
    cidr = yaml.safe_load((ENDPOINT / "inventory.yml").read_text())["all"]["vars"]["service_cidr"]
    if EXPECT[name]["accepted"]:
        assert endpoint.check_kubeconfig(kubeconfig, [cidr]) == kubeconfig["clusters"][0]["cluster"]["server"]
    else:
        # 'server is inside the service CIDR', 'name resolves only inside the cluster'
        wanted = EXPECT[name]["message_says"].split(" ", 1)[1]
        with pytest.raises(endpoint.EndpointError, match=wanted):
            endpoint.check_kubeconfig(kubeconfig, [cidr])


SERVERS = [
    ("https://cp.example.org:6443", None),
    ("https://[2001:db8::10]:6443", None),
    ("https://[fd00::1]:443", "inside the service CIDR"),
    ("https://kubernetes:443", "only inside the cluster"),
    ("https://kubernetes.default.svc.cluster.local:443", "only inside the cluster"),
    ("http://192.0.2.11:6443", "not an https URL"),
    ("192.0.2.11:6443", "not an https URL"),
]


@pytest.mark.parametrize(("server", "message"), SERVERS)
def test_server(server: str, message: str | None) -> None:
    cidrs = ["10.96.0.0/12", "fd00::/108"]
    if message is None:
        assert endpoint.check_server(server, cidrs)
    else:
        with pytest.raises(endpoint.EndpointError, match=message):
            endpoint.check_server(server, cidrs)
