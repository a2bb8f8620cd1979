"""kube-proxy of one node and of the whole cluster, through an API server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._sources import api_objects, connection
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.api_objects import ApiObjects
from devtools.waiting import eventually
from tests.takeover.cluster import Cluster

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"
LABEL = "kproxy.dataplane/service-proxy"


def test_info_translates_and_says_who_is_selected(cluster: Cluster) -> None:
    info = cluster.module("kube_proxy_info", node_name="n1", cores=8)
    assert info["selected"], info
    assert info["reasons"] == ["kube-proxy DaemonSet still selects this node"]
    assert info["config"]["detectLocalMode"] == "InterfaceNamePrefix"
    assert info["sysctls"]["net.netfilter.nf_conntrack_max"] == 524288
    assert any(line.startswith("ipvs.scheduler lc") for line in info["lost"])


def test_a_node_is_found_by_the_name_that_its_machine_has(cluster: Cluster) -> None:
    """Inventories and host names may have capitals, names of Nodes never do; kubelet writes them small."""
    assert cluster.module("kube_proxy_info", node_name="N1")["selected"]
    planned = cluster.module("kube_proxy", state="excluded", node_name="N1", _ansible_check_mode=True)
    assert planned["actions"][0] == "label node n1"


def test_one_node_is_excluded_and_the_others_are_not(cluster: Cluster) -> None:
    check = cluster.module("kube_proxy", state="excluded", node_name="n1", _ansible_check_mode=True)
    assert check["changed"]
    assert cluster.module("kube_proxy_info", node_name="n1")["selected"]

    done = cluster.module("kube_proxy", state="excluded", node_name="n1")
    assert (
        done["actions"]
        == check["actions"]
        == ["label node n1", "keep DaemonSet kube-system/kube-proxy off labelled nodes"]
    )
    assert not cluster.module("kube_proxy_info", node_name="n1")["selected"]
    assert cluster.module("kube_proxy_info", node_name="n3")["selected"]
    assert not cluster.module("kube_proxy", state="excluded", node_name="n1")["changed"]

    back = cluster.module("kube_proxy", state="included", node_name="n1")
    assert back["actions"] == ["remove the label of node n1"]
    assert cluster.module("kube_proxy_info", node_name="n1")["selected"]
    assert not cluster.module("kube_proxy", state="included", node_name="n1")["changed"]


POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "kube-proxy-abcde",
        "namespace": "kube-system",
        "ownerReferences": [{"kind": "DaemonSet", "name": "kube-proxy", "apiVersion": "apps/v1", "uid": "1"}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "kube-proxy", "image": "x"}]},
}


def test_exclusion_waits_until_the_pod_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    cluster.admin.apply(POD)
    # Says when something of the list changes, and notices that it has changed already.
    api = ApiObjects(connection.from_kubeconfig(str(cluster.kubeconfig), str(tmp_path)))
    path = api_objects.pods("n1")
    listing = api.listing(path)
    assert [item["metadata"]["name"] for item in listing.items] == ["kube-proxy-abcde"]
    assert api.items(api_objects.pods("n3")) == []
    assert not api.wait_for_change(path, listing.version, 1)
    with ThreadPoolExecutor() as pool:
        excluded = pool.submit(cluster.module, "kube_proxy", state="excluded", node_name="n1", wait_seconds=60)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
        eventually(lambda: LABEL in cluster.admin.get(node)["metadata"].get("labels", {}), "the node's label")
        assert not excluded.done()
        cluster.admin.delete(POD)
        assert excluded.result(timeout=60)["changed"]
    assert api.wait_for_change(path, listing.version, 60)


def test_exclusion_fails_while_the_pod_stays(cluster: Cluster) -> None:
    pod = POD
    cluster.admin.apply(pod)
    try:
        failed = cluster.module("kube_proxy", state="excluded", node_name="n1", wait_seconds=0)
        assert failed["failed"]
        assert "kube-proxy-abcde is still on node n1" in failed["msg"]
    finally:
        cluster.admin.delete(pod)


def test_an_upgrade_that_makes_the_daemonset_anew_is_told_and_undone(cluster: Cluster) -> None:
    """kubeadm's addon phase writes its own template over the exclusion; the node's label stays."""
    daemonset = {"apiVersion": "apps/v1", "kind": "DaemonSet"}
    item = cluster.admin.get({**daemonset, "metadata": {"name": "kube-proxy", "namespace": "kube-system"}})
    pristine = {key: item[key] for key in ("apiVersion", "kind", "spec")}
    pristine["metadata"] = {"name": "kube-proxy", "namespace": "kube-system", "labels": {"k8s-app": "kube-proxy"}}
    assert cluster.module("kube_proxy", state="excluded", node_name="n1")["changed"]
    assert cluster.module("kube_proxy_info", node_name="n1")["reasons"] == []

    cluster.admin.apply(pristine)
    assert cluster.module("kube_proxy_info", node_name="n1")["reasons"] == [
        "kube-proxy DaemonSet still selects this node"
    ]
    assert cluster.module("kube_proxy", state="excluded", node_name="n1")["changed"]
    assert cluster.module("kube_proxy_info", node_name="n1")["reasons"] == []


def test_removal_is_complete_kept_and_stays_over_an_upgrade(cluster: Cluster) -> None:
    done = cluster.module("kube_proxy", state="removed")
    assert done["actions"] == [
        "note proxy.disabled in kubeadm's configuration",
        "delete DaemonSet kube-system/kube-proxy",
        "delete ConfigMap kube-system/kube-proxy",
    ], done
    assert [item["kind"] for item in done["deleted"]] == ["DaemonSet", "ConfigMap"]
    stored = cluster.admin.get(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubeadm-config", "namespace": "kube-system"}}
    )
    text = (CASES / "20-kubeadm-upgrade-brings-it-back" / "kubeadm-config-cm.yaml").read_text()
    before = yaml.safe_load(yaml.safe_load(text)["data"]["ClusterConfiguration"])
    assert yaml.safe_load(stored["data"]["ClusterConfiguration"]) == {**before, "proxy": {"disabled": True}}
    again = cluster.module("kube_proxy", state="removed")
    assert not again["changed"]
    assert again["deleted"] == []


def test_a_node_that_does_not_exist_is_named(cluster: Cluster) -> None:
    failed = cluster.module("kube_proxy", state="excluded", node_name="nobody")
    assert failed["failed"]
    assert "there is no Node nobody" in failed["msg"]
