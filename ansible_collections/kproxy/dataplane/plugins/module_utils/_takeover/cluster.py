# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the cluster's objects say about kube-proxy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import daemonset as daemonsets
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import kube_proxy_flags

# In a domain of our own, because kubelet may change such a label of its own node (NodeRestriction), which is how a node
# that lost the controller finds its way back.
EXCLUSION_LABEL = "kproxy.dataplane/service-proxy"
EXCLUSION_VALUE = "kproxy"
_CONFIG_KEYS = ("config.conf", "config.yaml", "kube-proxy.conf")


class ConfigSource(NamedTuple):
    """Where a DaemonSet's kube-proxy has its configuration. key: of the ConfigMap; empty where the mount tells none."""

    namespace: str
    config_map: str
    key: str
    flags: kube_proxy_flags.Flags


def config_source(daemonset: Mapping[str, Any]) -> ConfigSource:
    """Return the ConfigMap that `--config` is a file of (empty name: none) and what the command line says.

    Without a mount of that path the first ConfigMap of the pod is taken. Raises ValueError for a flag that is none.
    """
    pod = ((daemonset.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = pod.get("containers") or []
    named = [item for item in containers if "kube-proxy" in str(item.get("name"))]
    container = next((item for item in containers if daemonsets.runs_kube_proxy(item)), None)
    container = container or (named or containers or [{}])[0]
    flags = kube_proxy_flags.parse(daemonsets.command_line(container))
    volumes: dict[Any, Any] = {
        item.get("name"): item["configMap"] for item in pod.get("volumes") or [] if item.get("configMap")
    }
    namespace = str((daemonset.get("metadata") or {}).get("namespace") or "kube-system")
    mounts = sorted(
        container.get("volumeMounts") or [], key=lambda item: len(str(item.get("mountPath", ""))), reverse=True
    )
    for mount in mounts:
        folder = str(mount.get("mountPath", "")).rstrip("/")
        if flags.config_file == folder or flags.config_file.startswith(folder + "/"):
            volume = volumes.get(mount.get("name"))
            if volume is None:
                return ConfigSource(namespace, "", "", flags)  # a file of the host
            path = str(mount.get("subPath") or flags.config_file[len(folder) + 1 :])
            keys = [str(item.get("key")) for item in volume.get("items") or [] if item.get("path") == path]
            return ConfigSource(namespace, str(volume.get("name", "")), (keys or [path])[0], flags)
    first: Mapping[str, Any] = next(iter(volumes.values()), {})
    return ConfigSource(namespace, str(first.get("name", "")), "", flags)


def config_text(config_map: Mapping[str, Any], key: str = "") -> str:
    """Return the KubeProxyConfiguration document in a ConfigMap, empty when there is none."""
    data = config_map.get("data") or {}
    return next((str(data[name]) for name in (key, *_CONFIG_KEYS) if data.get(name)), "")


def node_ports(services: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all NodePorts as `31190/tcp`, health check ports left out."""
    found = {
        f"{port['nodePort']}/{str(port.get('protocol') or 'TCP').lower()}"
        for service in services
        for port in (service.get("spec") or {}).get("ports") or []
        if port.get("nodePort")
    }
    return sorted(found)


def pods_on(daemonset: Mapping[str, Any], pods: Iterable[Mapping[str, Any]], node: str) -> list[str]:
    """Return the names of the DaemonSet's pods that are on a node."""
    metadata = daemonset["metadata"]
    return [
        str(pod["metadata"]["name"])
        for pod in pods
        if (pod.get("spec") or {}).get("nodeName") == node
        and pod["metadata"].get("namespace") == metadata.get("namespace")
        and any(
            owner.get("kind") == "DaemonSet" and owner.get("name") == metadata["name"]
            for owner in pod["metadata"].get("ownerReferences") or []
        )
    ]


def exclusion_patch(daemonset: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the merge patch that keeps the DaemonSet off labelled nodes; None when it does so already."""
    changed = daemonsets.exclude_by_label(daemonset, EXCLUSION_LABEL)
    if changed == daemonset:
        return None
    return {"spec": {"template": {"spec": {"affinity": changed["spec"]["template"]["spec"]["affinity"]}}}}


def label_patch(node: Mapping[str, Any], excluded: bool) -> dict[str, Any] | None:
    """Return the merge patch that sets or removes the node's label; None when it is as wanted."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    wanted = EXCLUSION_VALUE if excluded else None
    if labels.get(EXCLUSION_LABEL) == wanted:
        return None
    return {"metadata": {"labels": {EXCLUSION_LABEL: wanted}}}


def node_ready(node: Mapping[str, Any]) -> bool:
    """Whether kubelet says, and is still heard saying, that the node can take pods (condition Ready)."""
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
