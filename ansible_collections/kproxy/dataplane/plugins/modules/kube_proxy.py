#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kube_proxy
short_description: Keep kube-proxy off one node, give it back, or remove it from the cluster
version_added: 1.0.0
description:
  - V(excluded) labels one node and makes kube-proxy's DaemonSets avoid nodes with that label, then waits until their
    pods on the node are gone. Other nodes keep kube-proxy.
  - V(included) removes the label, so that kube-proxy comes back to the node.
  - V(removed) deletes the DaemonSets and their ConfigMaps and notes C(proxy.disabled) in kubeadm's stored
    configuration, so that an upgrade does not bring them back. What was deleted is returned,
    and in check mode what would be; keep that before anything is deleted.
  - Runs where a kubeconfig with these rights is, usually delegated to the controller.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.actiongroup_kproxy
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - kproxy.dataplane contributors (@kproxy)
requirements:
  - PyYAML, for V(removed) in a cluster made by kubeadm
options:
  kubeconfig:
    description:
      - A kubeconfig that may change DaemonSets, ConfigMaps and nodes; its current context is used.
    type: path
    required: true
  state:
    description:
      - What to reach.
    type: str
    choices: [excluded, included, removed]
    required: true
  node_name:
    description:
      - Name of the Node object, for V(excluded) and V(included).
    type: str
  wait_seconds:
    description:
      - How long to wait for the pods on the node to go. The module fails when they are still there.
    type: int
    default: 60
notes:
  - The first exclusion changes the DaemonSet's pod template, so kube-proxy restarts once on the other nodes; its rules
    stay.
"""

EXAMPLES = r"""
- name: Keep kube-proxy off this node
  kproxy.dataplane.kube_proxy:
    kubeconfig: ~/.kube/config
    node_name: "{{ inventory_hostname }}"
    state: excluded
  delegate_to: localhost
  become: false

- name: Remove kube-proxy, once every node has verified
  kproxy.dataplane.kube_proxy:
    kubeconfig: ~/.kube/config
    state: removed
  delegate_to: localhost
  run_once: true
  become: false
  register: kube_proxy
"""

RETURN = r"""
actions:
  description: One line for every change that was made, or would be in check mode.
  returned: success
  type: list
  elements: str
deleted:
  description: The objects that were deleted, complete, to be kept as a backup.
  returned: when O(state=removed)
  type: list
  elements: dict
"""

import json
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap import kubeadm
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import overridden_name
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources import api_objects, connection
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.api_objects import ApiObjects
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.manifests import parse_text
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import cluster, daemonset

# Before the pods are listed anew where the API server does not let itself be watched.
_PAUSE_SECONDS = 0.5


class Action(NamedTuple):
    """One change: its name, what it turns into what, and how it is made."""

    name: str
    before: Any
    after: Any
    make: Callable[[], Any]


def _patch(api: ApiObjects, path: api_objects.ObjectPath, patch: dict[str, Any]) -> Callable[[], Any]:
    return lambda: api.merge(path, patch)


def _delete(api: ApiObjects, path: api_objects.ObjectPath) -> Callable[[], Any]:
    return lambda: api.delete(path)


def kube_proxies(api: ApiObjects) -> list[dict[str, Any]]:
    """Return kube-proxy's DaemonSets."""
    return [item for item in api.items(api_objects.daemonsets()) if daemonset.is_kube_proxy(item)]


def _path(item: dict[str, Any]) -> api_objects.ObjectPath:
    return api_objects.daemonsets(item["metadata"].get("namespace", "kube-system"), item["metadata"]["name"])


def plan_node(api: ApiObjects, node_name: str, excluded: bool) -> list[Action]:
    """Return what keeps kube-proxy off the node, or lets it back."""
    node = api.get(api_objects.node(node_name))
    if node is None:
        raise SourceError(f"there is no Node {node_name}; set the name that this machine has in the cluster")
    actions = []
    label = cluster.label_patch(node, excluded)
    if label is not None:
        labels = node["metadata"].get("labels") or {}
        actions.append(
            Action(
                f"label node {node_name}" if excluded else f"remove the label of node {node_name}",
                {cluster.EXCLUSION_LABEL: labels.get(cluster.EXCLUSION_LABEL)},
                label["metadata"]["labels"],
                _patch(api, api_objects.node(node_name), label),
            )
        )
    for item in kube_proxies(api) if excluded else ():
        patch = cluster.exclusion_patch(item)
        if patch is not None:
            before = item["spec"]["template"]["spec"].get("affinity")
            name = f"keep DaemonSet {item['metadata'].get('namespace')}/{item['metadata']['name']} off labelled nodes"
            actions.append(Action(name, before, patch["spec"]["template"]["spec"], _patch(api, _path(item), patch)))
    return actions


def plan_removal(api: ApiObjects) -> tuple[list[Action], list[dict[str, Any]]]:
    """Return what removes kube-proxy from the cluster for good, and the objects that go."""
    actions: list[Action] = []
    deleted: list[dict[str, Any]] = []
    stored_path = api_objects.config_map("kube-system", "kubeadm-config")
    stored = api.get(stored_path)
    if stored is not None:
        text = (stored.get("data") or {}).get("ClusterConfiguration", "")
        documents = parse_text("ConfigMap kube-system/kubeadm-config", text)
        if not documents:
            raise SourceError(
                "ConfigMap kube-system/kubeadm-config has no ClusterConfiguration, so the next kubeadm upgrade could "
                "not be told to leave kube-proxy out: repair it (kubeadm init phase upload-config kubeadm), or delete "
                "it if kubeadm does not manage this cluster"
            )
        before = documents[0]
        after = kubeadm.amend_stored(before).documents[0]
        if after != before:
            # JSON is YAML too, and needs no library to write.
            patch = {"data": {"ClusterConfiguration": json.dumps(after, indent=2) + "\n"}}
            actions.append(
                Action("note proxy.disabled in kubeadm's configuration", before, after, _patch(api, stored_path, patch))
            )
    config_maps: dict[tuple[str, str], None] = {}
    for item in kube_proxies(api):
        source = cluster.config_source(item)
        if source.config_map:
            config_maps[source.namespace, source.config_map] = None
        deleted.append(item)
        name = f"delete DaemonSet {item['metadata'].get('namespace')}/{item['metadata']['name']}"
        actions.append(Action(name, item["metadata"]["name"], None, _delete(api, _path(item))))
    for namespace, name in config_maps or {("kube-system", "kube-proxy"): None}:
        path = api_objects.config_map(namespace, name)
        found = api.get(path)
        if found is not None:
            deleted.append(found)
            actions.append(Action(f"delete ConfigMap {namespace}/{name}", name, None, _delete(api, path)))
    return actions, deleted


def wait_for_pods_to_go(api: ApiObjects, node_name: str, seconds: int) -> None:
    """Return once no pod of kube-proxy is on the node. Raises SourceError, naming them, when time is up."""
    deadline = time.monotonic() + seconds
    path = api_objects.pods(node_name)
    while True:
        pods = api.listing(path)
        left = [name for item in kube_proxies(api) for name in cluster.pods_on(item, pods.items, node_name)]
        if not left:
            return
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise SourceError(
                f"{', '.join(left)} is still on node {node_name} after {seconds} s; does the DaemonSet controller run?"
            )
        if not api.wait_for_change(path, pods.version, remaining):
            time.sleep(min(remaining, _PAUSE_SECONDS))


def run(module: AnsibleModule, api: ApiObjects) -> dict[str, Any]:
    """Plan, act outside check mode, and return the result."""
    state, node_name = module.params["state"], overridden_name(module.params["node_name"])
    deleted: list[dict[str, Any]] = []
    if state == "removed":
        actions, deleted = plan_removal(api)
    else:
        actions = plan_node(api, node_name, state == "excluded")
    if not module.check_mode:
        for action in actions:
            action.make()
        if state == "excluded":
            wait_for_pods_to_go(api, node_name, module.params["wait_seconds"])
    result: dict[str, Any] = {"changed": bool(actions), "actions": [action.name for action in actions]}
    if state == "removed":
        result["deleted"] = deleted
    if module._diff:
        result["diff"] = [
            {"before_header": action.name, "after_header": action.name, "before": action.before, "after": action.after}
            for action in actions
        ]
    return result


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["excluded", "included", "removed"], "required": True},
            "node_name": {"type": "str"},
            "wait_seconds": {"type": "int", "default": 60},
        },
        required_if=[("state", "excluded", ["node_name"]), ("state", "included", ["node_name"])],
        supports_check_mode=True,
    )
    with tempfile.TemporaryDirectory(dir=module.tmpdir) as folder:
        try:
            result = run(module, ApiObjects(connection.from_kubeconfig(module.params["kubeconfig"], folder)))
        except (SourceError, ValueError) as error:
            module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
