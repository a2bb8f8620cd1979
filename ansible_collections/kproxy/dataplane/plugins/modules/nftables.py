#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nftables
short_description: Program Kubernetes Services into a node's nftables
version_added: 1.0.0
description:
  - Reads Services, EndpointSlices, the Node and ServiceCIDRs once, works out what every client may reach, and makes
    the tables
    C(ip kproxy) and C(ip6 kproxy) say so, in one transaction. What is right already stays.
  - Tables of anybody else are neither read nor touched.
  - With O(canary) only the chosen Services are programmed, into the tables C(ip kproxy-canary) and
    C(ip6 kproxy-canary), whose chains come before those of kube-proxy. What they do not hold is left to kube-proxy.
  - An object that cannot be used costs only itself. It is returned in RV(refused) and warned about.
  - To keep the tables in step with the API server from then on, run the sidecar (M(kproxy.dataplane.sidecar)).
  - On a node whose kproxyd is in step nothing is written, since kproxyd would put back what it knows. What would be is
    returned, and programmed by kproxyd once M(kproxy.dataplane.sidecar) has given it the same source and settings.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._kproxy.node
  - kproxy.dataplane._kproxy.source
author:
  - kproxy.dataplane contributors (@kproxy)
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Names the addresses and endpoints that come, go or move, by namespace, Service and port, up to a fixed number
        of lines.
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) makes the tables say what the source says. A source is needed.
      - V(absent) removes the tables, those of a canary as well. With O(canary) it removes those alone.
    type: str
    choices: [present, absent]
    default: present
  canary:
    version_added: 1.1.0
    description:
      - Which Services are programmed on a node whose kube-proxy goes on serving all others.
      - Chosen is what O(canary.services) names, and what meets O(canary.selector) in one of O(canary.namespaces), as
        with the options C(-l) and C(-n) of C(kubectl); an empty one of the two does not narrow the other.
      - A node that was taken over whole is refused. Without the option, tables of an earlier canary are removed once
        all Services are programmed.
    type: dict
    suboptions:
      selector:
        description: A label selector for Services, such as V(app=web) or V(tier in (front,api\),!legacy).
        type: str
      namespaces:
        description: Namespaces of the Services.
        type: list
        elements: str
        default: []
      services:
        description: Services by namespace and name, such as V(shop/frontend).
        type: list
        elements: str
        default: []
requirements:
  - Linux 5.13 or later
  - nft 1.0.1 or later
seealso:
  - module: kproxy.dataplane.service_info
  - module: kproxy.dataplane.sidecar
"""

EXAMPLES = r"""
- name: Program what the API server says
  kproxy.dataplane.nftables:
    api_servers:
      - https://192.0.2.11:6443
      - https://192.0.2.12:6443
    ca_cert: /etc/kproxy/pki/ca.crt
    client_cert: /etc/kproxy/pki/node.crt
    client_key: /etc/kproxy/pki/node.key
    config:
      clusterCIDR: 10.244.0.0/16

- name: Program the manifests of a folder on the controller
  kproxy.dataplane.nftables:
    manifests: manifests/
    node_name: gpu-a

- name: Program one Service without any file
  kproxy.dataplane.nftables:
    objects:
      - apiVersion: v1
        kind: Service
        metadata:
          name: web
          namespace: shop
        spec:
          clusterIP: 10.96.0.20
          ports:
            - name: http
              port: 80
      - apiVersion: discovery.k8s.io/v1
        kind: EndpointSlice
        metadata:
          name: web-1
          namespace: shop
          labels:
            kubernetes.io/service-name: web
        addressType: IPv4
        ports:
          - name: http
            port: 8080
        endpoints:
          - addresses:
              - 10.244.1.5

- name: Serve one Service beside a kube-proxy that serves the rest
  kproxy.dataplane.nftables:
    kubeconfig: /etc/kproxy/kubeconfig
    canary:
      services:
        - shop/frontend

- name: Remove everything
  kproxy.dataplane.nftables:
    state: absent
"""

RETURN = r"""
endpoints:
  description: Endpoints that come, go or move, or would in check mode. Each list is bounded, the counts are not.
  returned: success
  type: dict
  contains:
    added:
      description: Endpoints that come.
      type: list
      elements: str
    removed:
      description: Endpoints that go.
      type: list
      elements: str
    moved:
      description: Endpoints that take the place of another in the same service port.
      type: list
      elements: str
    counts:
      description: How many there are of each.
      type: dict
  sample:
    added: ["shop/web:http 10.244.1.8:8080"]
    removed: []
    moved: ["shop/web:http 10.244.1.5:8080 -> 10.244.1.7:8080"]
    counts: {added: 1, removed: 0, moved: 1}
left_to_kproxyd:
  description: Whether the changes were left to the kproxyd that keeps this node in step. Always V(false) in check mode.
  returned: success
  type: bool
  sample: false
elements:
  description: Number of set and map elements that were written or removed, or would be in check mode.
  returned: success
  type: int
  sample: 4
frontends:
  description: Number of addresses that clients can dial on this node afterwards.
  returned: success
  type: int
  sample: 12
refused:
  description: Objects that cannot be used, each with the reason.
  returned: success
  type: list
  elements: str
  sample: ["Service shop/old: spec.clusterIP: '10.96.0.300' is no IP address"]
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

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.nftables_backend import NftablesBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.succession import kept_by_kproxyd
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import CANARY, WHOLE
from ansible_collections.kproxy.dataplane.plugins.module_utils._report import programming
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import (
    NODE_OPTIONS,
    SOURCE_OPTIONS,
    SOURCES,
    SOURCES_EXCLUDE,
)

CANARY_OPTIONS = {
    "selector": {"type": "str"},
    "namespaces": {"type": "list", "elements": "str", "default": []},
    "services": {"type": "list", "elements": "str", "default": []},
}
HIDDEN = "tables: %d elements that no endpoint shows (masquerading, source ranges, affinity, settings)"


class TakenWhole(ValueError):
    """The node has all Services from us, so that nobody else serves those that a canary does not choose."""

    def __init__(self) -> None:
        super().__init__(
            "this node has been taken over whole, and kube-proxy does not serve it; give it back first: "
            "ansible-playbook kproxy.dataplane.rollback"
        )


def present(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Program all Services, or the chosen ones; return the module's result."""
    if params["canary"] is not None:
        if NftablesBackend(place=WHOLE).exists():
            raise TakenWhole
        options = {**params, "config": {**params["config"], "canary": params["canary"]}}
        return programming.present(
            options,
            check_mode,
            lambda config: NftablesBackend(config.families, place=CANARY),
            HIDDEN,
            lambda: kept_by_kproxyd(canary=True),
        )
    result = programming.present(
        params,
        check_mode,
        lambda config: NftablesBackend(config.families),
        HIDDEN,
        lambda: kept_by_kproxyd(canary=False),
    )
    # Only now: until then its Services would be without us.
    return _together(result, programming.absent(params, check_mode, NftablesBackend(place=CANARY)))


def absent(params: dict[str, Any], check_mode: bool) -> dict[str, Any]:
    """Remove the tables of a canary, and those with all Services unless only the former are named."""
    result = programming.absent(params, check_mode, NftablesBackend(place=CANARY))
    if params["canary"] is not None:
        return result
    return _together(programming.absent(params, check_mode, NftablesBackend()), result)


def _together(result: dict[str, Any], canary: dict[str, Any]) -> dict[str, Any]:
    """Return a result that also tells of a canary's removal, which takes no address away that counts in the result."""
    if not canary["changed"]:
        return result
    word = "table %s\n" % CANARY.table
    diff = result["diff"]
    if isinstance(diff, dict):
        diff = {**diff, "before": diff.get("before", "") + word}
    return {**result, "changed": True, "diff": diff}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **SOURCE_OPTIONS,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "canary": {"type": "dict", "options": CANARY_OPTIONS},
        },
        mutually_exclusive=SOURCES_EXCLUDE,
        required_if=[("state", "present", SOURCES, True)],
        supports_check_mode=True,
    )
    try:
        run = present if module.params["state"] == "present" else absent
        result = run(module.params, module.check_mode)
    except (SourceError, CommitError, KernelError, ValueError) as error:
        module.fail_json(msg=str(error))
    for warning in programming.warnings(result["refused"] + result["notes"]):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
