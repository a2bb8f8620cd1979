"""Every configuration that the role `bootstrap` renders is one that its reader knows: kubeadm, kubelet, containerd.

One run of Ansible renders for clusters of each IP version, for kubeadm before and after v1beta4, for the first control
plane node, another one and a worker; the role's own check of the inventory runs before.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from typing import Any

import pytest
import yaml

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import views
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.reading import read_documents
from devtools import published_schemas
from devtools.bootstrap import ROOT
from devtools.environment import BIN, command_environment

IPV4 = {"bootstrap_service_cidrs": ["10.96.0.0/12"], "bootstrap_pod_cidrs": ["10.244.0.0/16"]}
IPV6 = {
    "bootstrap_service_cidrs": ["fd00:10:96::/108"],
    "bootstrap_pod_cidrs": ["fd00:10:244::/48"],
    "bootstrap_control_plane_endpoint": "[2001:db8::200]:6443",
}
BOTH = {key: [*IPV4[key], *IPV6[key]] for key in IPV4}
IPV6_FIRST = {
    **{key: [*IPV6[key], *IPV4[key]] for key in IPV4},
    "bootstrap_control_plane_endpoint": "cp.example.org:6443",
}
ADDRESSES = {
    "a": ("192.0.2.11", "2001:db8::11"),
    "b": ("192.0.2.12", "2001:db8::12"),
    "w": ("192.0.2.21", "2001:db8::21"),
}


def cluster(name: str, settings: dict[str, Any], versions: tuple[int, ...], nodes: str = "abw") -> dict[str, Any]:
    """Return a group of two control plane nodes and a worker, or some of them. versions: of IP, primary first."""
    hosts = {}
    for node, pair in ((node, ADDRESSES[node]) for node in nodes):
        addresses = [pair[0 if version == 4 else 1] for version in versions]
        own = {"ansible_host": addresses[0], "bootstrap_node_ips": addresses}
        hosts[f"{name}-{node}"] = {**own, "bootstrap_control_plane_group": f"{name}_control_plane"}
    control_plane: dict[str, dict[str, Any]] = {host: {} for host in hosts if not host.endswith("-w")}
    return {"hosts": hosts, "vars": settings, "children": {f"{name}_control_plane": {"hosts": control_plane}}}


MIRRORS = {
    "bootstrap_image_repository": "mirror.example.org/k8s",
    "bootstrap_sandbox_image": "mirror.example.org/k8s/pause:3.10",
    "bootstrap_registry_mirrors": [
        {
            "registry": "registry.k8s.io",
            "mirrors": ["https://mirror.example.org", "https://192.0.2.9:5000"],
            "ca": "/etc/ssl/m.crt",
        },
        {"registry": "docker.io", "mirrors": ["https://mirror.example.org/v2/docker"], "override_path": True},
    ],
}
OWN_DOCUMENTS: list[dict[str, Any]] = [
    {
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": "v1.34.1",
        "controlPlaneEndpoint": "192.0.2.200:6443",
        "apiServer": {"certSANs": ["api.example.org"], "extraArgs": [{"name": "audit-log-maxage", "value": "7"}]},
        "dns": {"disabled": True},
    },
    {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "maxPods": 250},
    {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "ipvs"},
]
CLUSTERS = {
    "ipv4": cluster("ipv4", IPV4, (4,)),
    "ipv6": cluster("ipv6", IPV6, (6,)),
    "both": cluster("both", BOTH, (4, 6)),
    "ipv6_first": cluster("ipv6_first", IPV6_FIRST, (6, 4)),
    "v130": cluster("v130", {**IPV4, "bootstrap_kubernetes_version": "v1.30.9"}, (4,), "ab"),
    "v130_both": cluster("v130_both", {**BOTH, "bootstrap_kubernetes_version": "v1.30.9"}, (4, 6), "aw"),
    "v131": cluster("v131", {**IPV4, "bootstrap_kubernetes_version": "v1.31.0"}, (4,), "a"),
    "asked": cluster("asked", {**IPV4, "bootstrap_kubeadm_api": "v1beta3"}, (4,), "a"),
    "mirrors": cluster("mirrors", {**IPV4, **MIRRORS}, (4,), "a"),
    "own": cluster("own", {**IPV4, "bootstrap_documents": OWN_DOCUMENTS}, (4,), "a"),
}
BETA3 = ("v130", "v130_both", "asked")
PLAYBOOK = """
- name: Render
  hosts: all
  connection: local
  gather_facts: false
  tasks:
    - name: Take the role's variables, and let it check the inventory
      ansible.builtin.include_role: {name: kproxy.dataplane.bootstrap, tasks_from: check, public: true}
    - name: Render what it would write
      ansible.builtin.set_fact:
        rendered:
          init: "{{ __bootstrap_init_documents }}"
          upgrade: "{{ __bootstrap_upgrade_documents }}"
          join: "{{ __bootstrap_join_document }}"
          preload: "{{ __bootstrap_preload }}"
          servers: "{{ __bootstrap_servers }}"
          containerd: "{{ lookup('ansible.builtin.template', templates ~ '/containerd.toml.j2') }}"
          hosts: >-
            {% set texts = [] -%}
            {% for item in bootstrap_registry_mirrors -%}
            {% set path = templates ~ '/hosts.toml.j2' -%}
            {% set _ = texts.append(lookup('ansible.builtin.template', path, template_vars={'item': item})) -%}
            {% endfor -%}
            {{ texts }}
      vars:
        __bootstrap_join:
          token: abcdef.0123456789abcdef
          hash: "sha256:{{ '%064d' | format(7) }}"
          certificate_key: "{{ '%064d' | format(9) }}"
    - name: Write it for all hosts at once
      ansible.builtin.copy:
        content: >-
          {{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'rendered'))) | to_json }}
        dest: "{{ folder }}/rendered.json"
        mode: "0600"
      run_once: true
"""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what the role would write, by host."""
    folder = tmp_path_factory.mktemp("rendered")
    (folder / "play.yml").write_text(PLAYBOOK)
    inventory = {"all": {"vars": {"bootstrap_control_plane_endpoint": "192.0.2.200:6443"}, "children": CLUSTERS}}
    (folder / "inventory.yml").write_text(yaml.safe_dump(inventory))
    templates = ROOT / "ansible_collections/kproxy/dataplane/roles/bootstrap/templates"
    done = subprocess.run(
        [str(BIN / "ansible-playbook"), "-i", str(folder / "inventory.yml"), str(folder / "play.yml")]
        + ["-e", f"folder={folder} templates={templates} ansible_python_interpreter={BIN / 'python'}"],
        env={**command_environment(), "HOME": str(folder), "ANSIBLE_COLLECTIONS_PATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, dict[str, Any]] = json.loads((folder / "rendered.json").read_text())
    return seen


HOSTS = [host for group in CLUSTERS.values() for host in group["hosts"]]


@pytest.mark.parametrize("host", HOSTS)
def test_its_reader_knows_every_document(rendered: dict[str, dict[str, Any]], host: str) -> None:
    seen = rendered[host]
    documents = [*seen["init"], *seen["upgrade"], seen["join"]]
    assert [published_schemas.faults(document) for document in documents] == [[]] * len(documents)
    assert published_schemas.faults_of_file("containerd-v2", tomllib.loads(seen["containerd"])) == []
    for text in seen["hosts"]:
        assert published_schemas.faults_of_file("containerd-hosts", tomllib.loads(text)) == []


def kinds(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {document["kind"]: document for document in documents}
    assert len(found) == len(documents)
    return found


@pytest.mark.parametrize("host", HOSTS)
def test_kube_proxy_is_switched_off_as_the_version_can(rendered: dict[str, dict[str, Any]], host: str) -> None:
    seen, version = rendered[host], "v1beta3" if host.rsplit("-", 1)[0] in BETA3 else "v1beta4"
    init = kinds(seen["init"])
    assert {item["apiVersion"] for item in [*seen["init"], seen["join"]] if "kubeadm" in item["apiVersion"]} == {
        f"kubeadm.k8s.io/{version}"
    }
    assert init["InitConfiguration"]["skipPhases"] == ["addon/kube-proxy"]
    assert init["KubeletConfiguration"]["makeIPTablesUtilChains"] is False
    assert "KubeProxyConfiguration" not in init
    if version == "v1beta4":
        assert init["ClusterConfiguration"]["proxy"] == {"disabled": True}
        (upgrade,) = seen["upgrade"]
        assert upgrade["apply"] == upgrade["node"] == {"skipPhases": ["addon/kube-proxy"]}
    else:
        assert "proxy" not in init["ClusterConfiguration"]
        assert seen["upgrade"] == []


ARGUMENTS = [
    ("ipv4-a", [{"name": "node-ip", "value": "192.0.2.11"}]),
    ("ipv6-w", [{"name": "node-ip", "value": "2001:db8::21"}]),
    ("both-b", [{"name": "node-ip", "value": "192.0.2.12,2001:db8::12"}]),
    ("ipv6_first-a", [{"name": "node-ip", "value": "2001:db8::11,192.0.2.11"}]),
    ("v130_both-w", {"node-ip": "192.0.2.21,2001:db8::21"}),
]


@pytest.mark.parametrize(("host", "arguments"), ARGUMENTS)
def test_kubelet_reports_an_address_of_each_version(
    rendered: dict[str, dict[str, Any]], host: str, arguments: Any
) -> None:
    for document in (kinds(rendered[host]["init"])["InitConfiguration"], rendered[host]["join"]):
        assert document["nodeRegistration"] == {"name": host, "kubeletExtraArgs": arguments}


SERVERS = [
    ("ipv4-w", ["https://192.0.2.200:6443", "https://192.0.2.11:6443", "https://192.0.2.12:6443"]),
    ("ipv6-w", ["https://[2001:db8::200]:6443", "https://[2001:db8::11]:6443", "https://[2001:db8::12]:6443"]),
    ("ipv6_first-b", ["https://cp.example.org:6443", "https://[2001:db8::11]:6443", "https://[2001:db8::12]:6443"]),
]


@pytest.mark.parametrize(("host", "servers"), SERVERS)
def test_the_sidecar_gets_real_addresses(rendered: dict[str, dict[str, Any]], host: str, servers: list[str]) -> None:
    assert rendered[host]["servers"] == servers


#: host, cluster IP of the API server, the API servers that run already or are about to, cluster IP of DNS.
FIRST = [
    ("ipv4-a", "10.96.0.1", ["192.0.2.11:6443"], "10.96.0.10"),
    ("ipv4-b", "10.96.0.1", ["192.0.2.11:6443"], "10.96.0.10"),
    ("ipv4-w", "10.96.0.1", ["192.0.2.11:6443", "192.0.2.12:6443"], "10.96.0.10"),
    ("ipv6-a", "fd00:10:96::1", ["[2001:db8::11]:6443"], "fd00:10:96::a"),
    ("ipv6-w", "fd00:10:96::1", ["[2001:db8::11]:6443", "[2001:db8::12]:6443"], "fd00:10:96::a"),
    ("both-w", "10.96.0.1", ["192.0.2.11:6443", "192.0.2.12:6443"], "10.96.0.10"),
    ("ipv6_first-w", "fd00:10:96::1", ["[2001:db8::11]:6443", "[2001:db8::12]:6443"], "fd00:10:96::a"),
]


@pytest.mark.parametrize(("host", "api_server", "endpoints", "dns"), FIRST, ids=[row[0] for row in FIRST])
def test_the_first_services_answer_before_the_api_server_can_be_asked(
    rendered: dict[str, dict[str, Any]], host: str, api_server: str, endpoints: list[str], dns: str
) -> None:
    reading = read_documents(rendered[host]["preload"])
    assert list(reading.refusals) == []
    table = ServiceTable(ProxyConfig.from_mapping({"nodeName": host}))
    table.apply([Upsert(item) for item in reading.objects])

    def verdict(address: str, port: int, protocol: str) -> tuple[str, list[str]]:
        source = "2001:db8::99" if ":" in address else "192.0.2.99"
        packet = {"from": source, "to": address, "port": port, "protocol": protocol}
        answer = views.trace(table, packet, set())()
        return answer["verdict"], sorted(entry["address"] for entry in answer["endpoints"])

    assert verdict(api_server, 443, "TCP") == ("dnat", endpoints)
    assert verdict(dns, 53, "UDP") == verdict(dns, 53, "TCP") == ("reject", [])


def test_mirrors(rendered: dict[str, dict[str, Any]]) -> None:
    seen = rendered["mirrors-a"]
    assert kinds(seen["init"])["ClusterConfiguration"]["imageRepository"] == "mirror.example.org/k8s"
    cri = tomllib.loads(seen["containerd"])["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "mirror.example.org/k8s/pause:3.10"
    assert cri["containerd"]["runtimes"]["runc"]["options"] == {"SystemdCgroup": True}
    first, second = map(tomllib.loads, seen["hosts"])
    assert first["server"] == "https://registry.k8s.io"
    assert list(first["host"]) == ["https://mirror.example.org", "https://192.0.2.9:5000"]
    assert {entry["ca"] for entry in first["host"].values()} == {"/etc/ssl/m.crt"}
    assert second["server"] == "https://registry-1.docker.io"
    assert second["host"]["https://mirror.example.org/v2/docker"]["override_path"] is True
    assert "sandbox_image" not in rendered["ipv4-a"]["containerd"]


def test_the_users_own_documents_stay_as_they_are(rendered: dict[str, dict[str, Any]]) -> None:
    init = kinds(rendered["own-a"]["init"])
    assert init["ClusterConfiguration"] == {**OWN_DOCUMENTS[0], "proxy": {"disabled": True}}
    assert init["KubeletConfiguration"] == {**OWN_DOCUMENTS[1], "makeIPTablesUtilChains": False}
