# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: preflight
short_description: Decide whether a node can carry the dataplane
version_added: 1.0.0
description:
  - Turns the facts of the module C(kproxy.dataplane.node_facts) into findings. Nothing is read from or written to the
    node.
options:
  _input:
    description: The fact C(kproxy_node) of a node.
    type: dict
    required: true
  backend:
    description: What carries the Services; only its needs are looked at.
    type: str
    choices: [nftables, ebpf]
    default: nftables
  node_ports:
    description: Range of the NodePorts, as the API server has it.
    type: str
    default: 30000-32767
  conntrack_min:
    description: The connection table is never allowed to be smaller than this.
    type: int
    default: 131072
  conntrack_per_core:
    description: Entries of the connection table per processor core, up to 1048576 in all.
    type: int
    default: 32768
  tcp_be_liberal:
    description: Whether to make connection tracking liberal about TCP windows on kernels before 6.1.
    type: bool
    default: false
  families:
    description: IP versions in use.
    type: list
    elements: int
    default: [4, 6]
  install_packages:
    description: Whether a missing package is something to install or a reason to refuse.
    type: bool
    default: true
  host_namespace_only:
    description: Whether the sockets of pods are left alone by the eBPF backend.
    type: bool
    default: false
  variables:
    description: Names of variables that are set. One that is nearly the name of one of the collection is refused.
    type: list
    elements: str
    default: []
author:
  - kproxy.dataplane contributors (@kproxy)
"""

EXAMPLES = r"""
- name: Show what would be wrong with a node
  ansible.builtin.debug:
    msg: "{{ ansible_facts['kproxy_node'] | kproxy.dataplane.preflight(backend='nftables') }}"
"""

RETURN = r"""
_value:
  description:
    - One finding per check, each with C(check), C(result) (V(ok), V(block), V(fix), V(warn) or V(skip)), C(message),
      C(sysctls),
      C(modules), C(packages) and C(overridable).
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.examine import examine
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts, Options


def preflight(facts: Mapping[str, Any], **options: Any) -> list[dict[str, Any]]:
    """Return the findings about one node as plain values."""
    try:
        findings = examine(NodeFacts.from_mapping(facts), Options.from_mapping(options))
    except (ValueError, TypeError, AttributeError) as error:
        raise AnsibleFilterError(f"kproxy.dataplane.preflight: {error}") from error
    return [finding.as_dict() for finding in findings]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"preflight": preflight}
