#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: residue_info
short_description: List every KUBE- object on a node with its owner
version_added: 1.0.0
description:
  - Lists iptables chains and jumps of both back ends (legacy and nft) and both families, ipsets, IPVS virtual servers,
    C(kube-ipvs0) and nftables tables, each with the program that owns it and why.
  - The owners are C(kube-proxy), C(kubelet), C(network-policy-agent), C(either) (made by kube-proxy and by kubelet
    before 1.27), C(kproxy) (this collection) and C(foreign).
  - Loads no kernel module and creates no table.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.info_module
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._residue
author:
  - kproxy.dataplane contributors (@kproxy)
seealso:
  - module: kproxy.dataplane.residue
"""

EXAMPLES = r"""
- name: See whose KUBE- objects this node holds
  kproxy.dataplane.residue_info:
  register: residue

- name: Insist that nothing of kube-proxy is left
  ansible.builtin.assert:
    that: residue.counts['kube-proxy'] == 0
    fail_msg: "{{ residue.entries | selectattr('owner', 'eq', 'kube-proxy') | map(attribute='name') | join(', ') }}"
"""

RETURN = r"""
entries:
  description: The ledger. KUBE- chains, the jumps to them, and every ipset, virtual server and nftables table.
  returned: success
  type: list
  elements: dict
  contains:
    owner:
      description: The program that made the object.
      type: str
    kind:
      description: One of C(chain), C(jump), C(ipset), C(virtual-server), C(interface) or C(nft-table).
      type: str
    where:
      description: Back end, family and table of a chain or jump; empty for other kinds.
      type: str
    name:
      description: Name of the object.
      type: str
    reason:
      description: Why the owner is who it is.
      type: str
  sample:
    - owner: kube-proxy
      kind: chain
      where: nft/ip/nat
      name: KUBE-SERVICES
      reason: only kube-proxy makes a chain of this name
counts:
  description: How many objects each owner has. Every owner is named, also with 0.
  returned: success
  type: dict
  sample:
    kube-proxy: 0
    kubelet: 5
    network-policy-agent: 0
    either: 0
    kproxy: 2
    foreign: 1
kube_proxy_running:
  description: Process ids of a kube-proxy that works on this network namespace, within k3s or MicroK8s' kubelite, too.
  returned: success
  type: list
  elements: int
ipvs_connections:
  version_added: 1.1.0
  description:
    - Open connections that IPVS carries, as kube-proxy's ipvs mode makes it do. They are translated by IPVS itself, and
      end with its virtual servers.
  returned: success
  type: int
saved:
  description: Files of rules, loaded at boot, that would bring objects of kube-proxy back, one sentence each.
  returned: success
  type: list
  elements: str
  version_added: 1.1.0
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import ipvs_state, processes, residue_state
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import ledger, ownership, service_ports


def main() -> None:
    module = AnsibleModule(
        argument_spec={"node_ports": {"type": "list", "elements": "str", "default": []}},
        supports_check_mode=True,
    )
    try:
        node_ports = service_ports.parse_all(module.params["node_ports"])
        book = ledger.attribute(residue_state.capture(), node_ports)
    except (ValueError, RuntimeError, KernelError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        entries=[entry._asdict() for entry in book.entries],
        counts={owner: book.count(owner) for owner in ownership.OWNERS},
        kube_proxy_running=processes.kube_proxies(),
        ipvs_connections=ipvs_state.connections(),
        saved=[str(item) for item in residue_state.saved_rules()],
    )


if __name__ == "__main__":
    main()
