#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ebpf
short_description: Program Kubernetes Services into a node's eBPF maps
version_added: 1.0.0
description:
  - Reads Services, EndpointSlices, the Node and ServiceCIDRs once, works out what every client may reach, and makes the
    pinned maps say so. Then the socket programs are put on the node's cgroup and the packet programs on its devices.
    What is right already stays; programs are swapped without losing a packet.
  - Nothing is compiled or installed on the node; the programs come with the collection.
  - SCTP is carried by the tables of M(kproxy.dataplane.nftables), which are made only while a Service uses it.
  - An object that cannot be used costs only itself. It is returned in RV(refused) and warned about.
  - To keep the maps in step with the API server from then on, and to remove the records of connections that have ended,
    run the sidecar (M(kproxy.dataplane.sidecar)).
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
      - V(present) makes the maps say what the source says, and attaches the programs. A source is needed.
      - V(absent) detaches the programs and removes the maps. Connections that were translated on the wire end.
    type: str
    choices: [present, absent]
    default: present
  directory:
    description:
      - Where programs and maps are pinned, a folder on a BPF file system.
    type: path
    default: /sys/fs/bpf/kproxy
  cgroup:
    description:
      - The cgroup2 directory that covers the node's processes, pods included. By default the root of the hierarchy.
    type: path
  host_namespace_only:
    description:
      - Leave the sockets of pods alone and translate their packets instead, as service meshes and virtual machines
        need.
    type: bool
    default: false
requirements:
  - Linux 5.10 or later, cgroup2 and a mounted BPF file system
  - nft 1.0.1 or later, for refusals (without it they are dropped) and for SCTP
seealso:
  - module: kproxy.dataplane.bpf_info
  - module: kproxy.dataplane.nftables
  - module: kproxy.dataplane.sidecar
"""

EXAMPLES = r"""
- name: Program what the API server says
  kproxy.dataplane.ebpf:
    api_servers:
      - https://192.0.2.11:6443
      - https://192.0.2.12:6443
    ca_cert: /etc/kproxy/pki/ca.crt
    client_cert: /etc/kproxy/pki/node.crt
    client_key: /etc/kproxy/pki/node.key
    config:
      clusterCIDR: 10.244.0.0/16

- name: Program the manifests of a folder on the controller
  kproxy.dataplane.ebpf:
    manifests: manifests/
    node_name: gpu-a

- name: Leave the sockets of pods to their service mesh
  kproxy.dataplane.ebpf:
    manifests: manifests/
    host_namespace_only: true

- name: Remove everything
  kproxy.dataplane.ebpf:
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
elements:
  description: Number of map entries that were written or removed, or would be in check mode.
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
conflicts:
  description: Addresses that two Services claim, and which of them has it.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import CommitError
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend, Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import DEFAULT_ROOT
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._report import programming
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import (
    NODE_OPTIONS,
    SOURCE_OPTIONS,
    SOURCES,
    SOURCES_EXCLUDE,
)

HIDDEN = "maps: %d entries that no endpoint shows (programs, masquerading, source ranges, affinity)"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            **SOURCE_OPTIONS,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "directory": {"type": "path", "default": DEFAULT_ROOT},
            "cgroup": {"type": "path"},
            "host_namespace_only": {"type": "bool", "default": False},
        },
        mutually_exclusive=SOURCES_EXCLUDE,
        required_if=[("state", "present", SOURCES, True)],
        supports_check_mode=True,
    )
    try:
        params = module.params
        options = Options(params["directory"], params["cgroup"] or "", params["host_namespace_only"])
        if params["state"] == "present":
            result = programming.present(
                params, module.check_mode, lambda config: EbpfBackend(config.families, options), HIDDEN
            )
        else:
            result = programming.absent(params, module.check_mode, EbpfBackend(options=options))
    except (SourceError, CommitError, KernelError, ValueError) as error:
        module.fail_json(msg=str(error))
    for warning in programming.warnings(result["refused"]):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
