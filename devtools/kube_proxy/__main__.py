"""`python -m devtools.kube_proxy FOLDER MANIFESTS NODE=MODE...`: a cluster whose lab nodes still run kube-proxy.

Starts an API server with the manifests and kube-proxy's objects, puts the stand-in on the nodes, and plays DaemonSet
controller and kubelets until the lab is gone or it is told to end. FOLDER then holds `admin.conf` and, once all runs,
`ready`.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import daemonset as daemonsets
from devtools.control_plane import Admin, NotFoundError, StandIn
from devtools.kube_proxy import rules
from devtools.lab import ssh
from devtools.lab.topology import Lab, Node
from devtools.lab.workload import load

UNIT = """[Unit]
Description=Stand-in for kube-proxy
[Service]
ExecStartPre=/bin/sh /opt/kube-proxy/load.sh
ExecStart=/opt/kube-proxy/kube-proxy infinity
"""
INSTALL = """set -e
mkdir -p /opt/kube-proxy
ln -sf /bin/sleep /opt/kube-proxy/kube-proxy
cat > /opt/kube-proxy/load.sh
cat > /etc/systemd/system/kube-proxy.service <<'END'
%sEND
systemctl daemon-reload
"""
LABELS = {"k8s-app": "kube-proxy"}
DAEMONSET = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "metadata": {"name": "kube-proxy", "namespace": "kube-system", "labels": LABELS},
    "spec": {
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "hostNetwork": True,
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "kube-proxy",
                        "image": "registry.example.org/kube-proxy:v1.34.1",
                        "command": ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"],
                    }
                ],
                "volumes": [{"name": "kube-proxy", "configMap": {"name": "kube-proxy"}}],
            },
        },
    },
}
# kubeadm writes every field, most of them empty.
CONFIG = """apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  {acceptContentTypes: "", burst: 0, contentType: "", kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
configSyncPeriod: 0s
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: 14, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs:
  {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, tcpFinTimeout: 0s, tcpTimeout: 0s,
   udpTimeout: 0s}
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: 15m0s, tcpEstablishedTimeout: null}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: 0.0.0.0:10249
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
featureGates: {SomeOldGate: true}
"""
CLUSTER_CONFIGURATION = """apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.34.1
proxy: {}
"""
POLL_SECONDS = 0.3


def config_map(name: str, **data: str) -> dict[str, Any]:
    """Return a ConfigMap of kube-system; underscores in keys stand for dots."""
    named = {key.replace("_", "."): text for key, text in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "kube-system"},
        "data": named,
    }


def pod(node: Node) -> dict[str, Any]:
    """Return the pod that the DaemonSet controller makes for a node."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "kube-proxy", "uid": "kube-proxy"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"kube-proxy-{node.name}", "namespace": "kube-system", "ownerReferences": [owner]},
        "spec": {"nodeName": node.name, "containers": [{"name": "kube-proxy", "image": "kube-proxy"}]},
    }


def wanted(admin: Admin, node: Node) -> bool:
    """Say whether kube-proxy belongs on the node now."""
    try:
        selected = admin.get(DAEMONSET)
        return daemonsets.selects(
            selected, admin.get({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name}})
        )
    except NotFoundError:
        return False


def reconcile(lab: Lab, admin: Admin, node: Node, running: bool) -> bool:
    """Start or stop kube-proxy on a node as the DaemonSet says; return whether it runs now."""
    should = wanted(admin, node)
    if should and not running:
        ssh.execute(lab, node, ["systemctl", "start", "kube-proxy"])
        admin.apply(pod(node))
    elif running and not should:
        ssh.execute(lab, node, ["systemctl", "stop", "kube-proxy"])
        admin.delete(pod(node))
    return should


def main(argv: list[str]) -> int:
    folder, manifests, *assignments = argv
    data = Path(folder)
    data.mkdir(parents=True, exist_ok=True)
    (data / "ready").unlink(missing_ok=True)
    modes = {Node(name): mode for name, _equals, mode in (item.partition("=") for item in assignments)}
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    lab = Lab.from_environment()
    objects = load(Path(manifests))
    with StandIn(data / "control-plane") as plane:
        plane.apply(*objects, DAEMONSET, config_map("kube-proxy", config_conf=CONFIG))
        plane.apply(config_map("kubeadm-config", ClusterConfiguration=CLUSTER_CONFIGURATION))
        for node, mode in modes.items():
            ssh.execute(lab, node, ["sh", "-c", INSTALL % UNIT], stdin=rules.load_script(mode, objects))
        running = {node: reconcile(lab, plane.admin, node, running=False) for node in modes}
        plane.write_kubeconfig(data / "admin.conf", "admin")
        (data / "ready").touch()
        while lab.state.exists() and not ended.wait(POLL_SECONDS):
            for node in modes:
                running[node] = reconcile(lab, plane.admin, node, running[node])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
