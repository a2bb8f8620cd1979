#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: service_info
short_description: List the addresses that clients can dial on a node, and the endpoints behind them
version_added: 1.0.0
description:
  - Returns the service table of a node, which says for every address what happens to pods, to the node itself and to
    everybody
    else.
  - With a source it is worked out from the source's objects. Without one, the running sidecar is asked what it has in
    force.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.info_module
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._kproxy.node
  - kproxy.dataplane._kproxy.source
author:
  - kproxy.dataplane contributors (@kproxy)
options:
  namespace:
    description: Return the Services of this namespace only.
    type: str
    default: ""
  socket:
    description: Where the sidecar is asked when no source is given.
    type: path
    default: /run/kproxy/kproxyd.sock
seealso:
  - module: kproxy.dataplane.nftables
"""

EXAMPLES = r"""
- name: Ask the sidecar what is in force
  kproxy.dataplane.service_info:
  register: table

- name: See what a folder of manifests would mean for this node
  kproxy.dataplane.service_info:
    manifests: manifests/
    config:
      clusterCIDR: 10.244.0.0/16
"""

RETURN = r"""
services:
  description: One entry per address that a client can dial, ordered by Service and address.
  returned: success
  type: list
  elements: dict
  sample:
    - service: shop/web
      port: http
      protocol: TCP
      kind: cluster-ip
      family: IPv4
      address: 10.96.0.20
      portNumber: 80
      outsiders: {verdict: dnat, endpointSet: cluster, endpoints: 2, masquerade: true}
      pods: {verdict: dnat, endpointSet: cluster, endpoints: 2, masquerade: false}
      node: {verdict: dnat, endpointSet: cluster, endpoints: 2, masquerade: true}
      endpoints: 2
      localEndpoints: 1
      affinitySeconds: 0
backends:
  description: One entry per endpoint that some client can reach through this node.
  returned: success
  type: list
  elements: dict
  sample:
    - service: shop/web
      port: http
      protocol: TCP
      endpoint: 10.244.1.5:8080
      local: true
      sets: [cluster]
refused:
  description: Objects that cannot be used, each with the reason.
  returned: success
  type: list
  elements: str
notes:
  description: Parts of objects that are not served, such as an address of another IP version, each with the reason.
  returned: success
  type: list
  elements: str
  sample: ["Service shop/web: externalIPs: 2001:db8::61 is of a family that the Service does not have; it is left out"]
conflicts:
  description: Addresses that two Services claim, and which of them has it.
  returned: success
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused, ask
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.notes import all_notes
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import views
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import (
    NODE_OPTIONS,
    SOURCE_OPTIONS,
    SOURCES_EXCLUDE,
    has_source,
    node_name_of,
    proxy_config,
    read_source,
)


def from_source(options: dict[str, Any]) -> dict[str, Any]:
    """Work the table out from the objects of the source."""
    reading = read_source(options, node_name_of(options))
    table = ServiceTable(proxy_config(options))
    table.apply([Upsert(obj) for obj in reading.objects])
    return {
        "services": views.services(table, options["namespace"])(),
        "backends": views.backends(table, options["namespace"])(),
        "refused": sorted(str(refusal) for refusal in reading.refusals),
        "notes": [*reading.notes, *all_notes(table)],
        "conflicts": [str(conflict) for conflict in table.conflicts],
    }


def from_sidecar(options: dict[str, Any]) -> dict[str, Any]:
    """Ask the sidecar for the table it has in force."""
    path, namespace = options["socket"], options["namespace"]
    status = ask(path, "status")
    return {
        "services": ask(path, "services", namespace=namespace),
        "backends": ask(path, "backends", namespace=namespace),
        "refused": status["refused"],
        "notes": status["notes"],
        "conflicts": status["conflicts"],
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **SOURCE_OPTIONS,
            "namespace": {"type": "str", "default": ""},
            "socket": {"type": "path", "default": "/run/kproxy/kproxyd.sock"},
        },
        mutually_exclusive=SOURCES_EXCLUDE,
        supports_check_mode=True,
    )
    try:
        result = from_source(module.params) if has_source(module.params) else from_sidecar(module.params)
    except (SourceError, DaemonDown, Refused, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
