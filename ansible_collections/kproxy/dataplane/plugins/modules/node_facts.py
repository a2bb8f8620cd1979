#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: Find out what a node can do for the dataplane
version_added: 1.0.0
description:
  - Returns the fact C(kproxy_node). Features are found by trying them in a network namespace of the module's own,
    which nobody else
    sees and which is gone afterwards; versions are returned for people.
  - The role C(kproxy.dataplane.preflight) decides by these facts.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.facts
  - kproxy.dataplane._attributes.facts_module
  - kproxy.dataplane._attributes.actiongroup_kproxy
author:
  - kproxy.dataplane contributors (@kproxy)
seealso:
  - plugin: kproxy.dataplane.preflight
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Look at the node
  kproxy.dataplane.node_facts:

- name: Show its kernel
  ansible.builtin.debug:
    var: ansible_facts['kproxy_node']['kernel']
"""

RETURN = r"""
ansible_facts:
  description: Facts to add to C(ansible_facts).
  returned: success
  type: dict
  contains:
    kproxy_node:
      description: What is known about the node.
      type: dict
      contains:
        kernel:
          description: Release of the kernel.
          type: str
        nft:
          description: Version of the nft program, or V(absent).
          type: str
        cores:
          description: Number of processor cores.
          type: int
        cap_net_admin:
          description: Whether the connection may change the network.
          type: bool
        features:
          description: What was tried, and whether it works. What could not be tried is left out.
          type: dict
        probe_errors:
          description: Why something does not work or could not be tried.
          type: list
          elements: str
        sysctls:
          description: Present values of the settings that matter. Those that this kernel does not have are left out.
          type: dict
        sysctls_read_only:
          description: Settings that cannot be changed from here, as in a container.
          type: list
          elements: str
        sysctl_writable:
          description: Whether any setting can be changed from here.
          type: bool
        tables:
          description: Tables of nftables, by family and name.
          type: list
          elements: str
        base_chains:
          description: Chains on a netfilter hook, of nftables and of iptables-legacy, each with its policy.
          type: list
          elements: dict
        cgroup2:
          description: Where the cgroup v2 hierarchy is mounted, or an empty string.
          type: str
        bpffs:
          description: Whether a BPF file system is mounted.
          type: bool
        btf:
          description: Whether the kernel describes its types.
          type: bool
        ra_devices:
          description: Devices whose IPv6 default route, from router advertisements, would end once the node forwards.
          type: list
          elements: str
          version_added: 1.1.0
        br_netfilter:
          description: Whether bridges hand their packets to netfilter.
          type: bool
        pods_on_bridge:
          description: The bridge that a network plugin hangs pods on, or an empty string.
          type: str
        containers:
          description: Names of the containers of every pod on this node, by C(NAMESPACE/NAME).
          type: dict
        guest_runtimes:
          description: Runtimes with a kernel of their own that have containers here, of V(kata) and V(gvisor).
          type: list
          elements: str
"""

import dataclasses
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import iptables_state
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_protocol import FAMILY_WORD
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.probe import collect_facts
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.tool import ToolError
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.base_chains import from_iptables_save


def legacy_base_chains() -> list[dict[str, Any]]:
    """Return the base chains of iptables-legacy, which nftables does not show. Raises ToolError."""
    found: list[dict[str, Any]] = []
    for item in iptables_state.tools():
        if item.backend == iptables_state.LEGACY:
            chains = from_iptables_save(iptables_state.save(item), FAMILY_WORD[item.family], "iptables-legacy")
            found += [dataclasses.asdict(chain) for chain in chains]
    return found


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    try:
        facts = collect_facts()
        if facts["cap_net_admin"]:
            try:
                facts["base_chains"] += legacy_base_chains()
            except ToolError as error:
                facts["probe_errors"].append(f"the chains of iptables-legacy were not looked at: {error}")
    except (KernelError, OSError) as error:
        module.fail_json(msg=f"the node cannot be looked at: {error}")
    module.exit_json(changed=False, ansible_facts={"kproxy_node": facts})


if __name__ == "__main__":
    main()
