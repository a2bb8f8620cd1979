#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kube_proxy_info
short_description: Tell how kube-proxy is set up in a cluster and what that means here
version_added: 1.0.0
description:
  - Reads kube-proxy's DaemonSets, its configuration and the node from the API server.
  - Translates the configuration, field by field, into settings of this collection, and names what has no counterpart.
  - Says whether a DaemonSet still puts kube-proxy on the node.
  - Runs where a kubeconfig with these rights is, usually delegated to the controller.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.info_module
  - kproxy.dataplane._attributes.actiongroup_kproxy
author:
  - kproxy.dataplane contributors (@kproxy)
requirements:
  - PyYAML, where kube-proxy's configuration is YAML
options:
  kubeconfig:
    description:
      - A kubeconfig that may read DaemonSets, ConfigMaps, Services, pods and nodes; its current context is used.
    type: path
    required: true
  node_name:
    description:
      - Name of the Node object.
    type: str
    required: true
  cores:
    description:
      - Processor cores of the node, by which kube-proxy scales the connection table.
    type: int
    default: 1
seealso:
  - module: kproxy.dataplane.kube_proxy
"""

EXAMPLES = r"""
- name: Read kube-proxy's setup
  kproxy.dataplane.kube_proxy_info:
    kubeconfig: ~/.kube/config
    node_name: "{{ inventory_hostname }}"
    cores: "{{ ansible_facts['processor_vcpus'] }}"
  delegate_to: localhost
  become: false
  register: kube_proxy
"""

RETURN = r"""
selected:
  description: Whether a DaemonSet puts kube-proxy on the node.
  returned: success
  type: bool
reasons:
  description: Why, one line each.
  returned: success
  type: list
  elements: str
daemonsets:
  description: kube-proxy's DaemonSets as C(namespace/name).
  returned: success
  type: list
  elements: str
pods:
  description: Pods of these DaemonSets on the node.
  returned: success
  type: list
  elements: str
node_ready:
  description: Whether the Node's condition C(Ready) is true.
  returned: success
  type: bool
  version_added: 1.1.0
config:
  description: Settings that carry the meaning over, under KubeProxyConfiguration's names.
  returned: success
  type: dict
sysctls:
  description: Kernel settings that kube-proxy made.
  returned: success
  type: dict
healthz_bind_address:
  description: Where kube-proxy served its health.
  returned: success
  type: str
metrics_bind_address:
  description: Where kube-proxy served its metrics.
  returned: success
  type: str
findings:
  description:
    - What became of each field that is there, as C(carried), C(not-needed), C(no-counterpart) or C(unknown).
    - C(differs) is a default of kube-proxy that nobody set and that is not in force here.
  returned: success
  type: list
  elements: dict
  sample:
    - field: ipvs.scheduler
      value: lc
      outcome: no-counterpart
      note: endpoints are chosen at random, each with equal chance
lost:
  description: The fields without a counterpart, one line each.
  returned: success
  type: list
  elements: str
node_ports:
  description: NodePorts of all services, for M(kproxy.dataplane.residue).
  returned: success
  type: list
  elements: str
"""

import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import overridden_name
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources import api_objects, connection
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.manifests import parse_text
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import (
    cluster,
    daemonset,
    gate,
    kube_proxy_config,
    kube_proxy_flags,
)


def configuration(
    api: api_objects.ApiObjects, item: dict[str, Any]
) -> tuple[dict[str, Any], tuple[kube_proxy_config.Finding, ...]]:
    """Return the configuration in force in a DaemonSet's pods, and what of it could not be read."""
    source = cluster.config_source(item)
    documents: list[Any] = []
    if source.config_map:
        found = api.get(api_objects.config_map(source.namespace, source.config_map)) or {}
        name = f"ConfigMap {source.namespace}/{source.config_map}"
        documents = parse_text(name, cluster.config_text(found, source.key))
        if documents and not isinstance(documents[0], dict):
            raise SourceError(f"{name} holds no KubeProxyConfiguration but {type(documents[0]).__name__}")
    file: dict[str, Any] = documents[0] if documents else {}
    config = kube_proxy_flags.with_file(source.flags, file)
    if str(config.get("hostnameOverride", "")).startswith("$("):
        del config["hostnameOverride"]  # kubeadm passes the pod's node name, which is what everybody uses anyway
    return config, kube_proxy_config.unread(source.flags, bool(documents))


def read(api: api_objects.ApiObjects, node_name: str, cores: int) -> dict[str, Any]:
    """Return everything the module tells."""
    node = api.get(api_objects.node(node_name))
    if node is None:
        raise SourceError(f"there is no Node {node_name}; set the name that this machine has in the cluster")
    found = [item for item in api.items(api_objects.daemonsets()) if daemonset.is_kube_proxy(item)]
    here = [item for item in found if daemonset.selects(item, node)]
    pods = api.items(api_objects.pods())
    config, unread = configuration(api, (here or found)[0]) if found else ({}, ())
    translation = kube_proxy_config.translate(config, cores)
    translation = translation._replace(findings=translation.findings + unread)
    return {
        "selected": bool(here),
        "reasons": list(gate.decide(node, found).reasons),
        "daemonsets": [f"{item['metadata'].get('namespace')}/{item['metadata']['name']}" for item in found],
        "pods": [name for item in found for name in cluster.pods_on(item, pods, node_name)],
        "node_ready": cluster.node_ready(node),
        "config": translation.config,
        "sysctls": translation.sysctls,
        "healthz_bind_address": translation.healthz_bind_address,
        "metrics_bind_address": translation.metrics_bind_address,
        "findings": [item._asdict() for item in translation.findings],
        "lost": [f"{item.field} {item.value}: {item.note}" for item in translation.lost],
        "node_ports": cluster.node_ports(api.items(api_objects.services())),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kubeconfig": {"type": "path", "required": True},
            "node_name": {"type": "str", "required": True},
            "cores": {"type": "int", "default": 1},
        },
        supports_check_mode=True,
    )
    with tempfile.TemporaryDirectory(dir=module.tmpdir) as folder:
        try:
            api = api_objects.ApiObjects(connection.from_kubeconfig(module.params["kubeconfig"], folder))
            result = read(api, overridden_name(module.params["node_name"]), module.params["cores"])
        except (SourceError, ValueError) as error:
            module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
