# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: ip_versions
short_description: Tell which IP versions a cluster speaks, and refuse ranges that do not fit together
version_added: 1.1.0
description:
  - Takes the ranges of the Services and returns their IP versions, the primary one first.
  - Fails when there are two ranges of one version, when pods or the node lack a version or have them in another order,
    and when ranges overlap.
options:
  _input:
    description: Ranges of the Services, one or one of each IP version.
    type: list
    elements: str
    required: true
  pod_cidrs:
    description: Ranges of the pods.
    type: list
    elements: str
    required: true
  node_ips:
    description: The node's own addresses.
    type: list
    elements: str
    required: true
author:
  - kproxy.dataplane contributors (@kproxy)
"""

EXAMPLES = r"""
- name: Refuse a dual-stack cluster on a node that has IPv4 alone
  ansible.builtin.assert:
    that: >-
      ['10.96.0.0/16', 'fd00:10:96::/108']
      | kproxy.dataplane.ip_versions(['10.244.0.0/16', 'fd00:10:244::/48'], ['192.0.2.11', '2001:db8::11'])
      | length == 2
"""

RETURN = r"""
_value:
  description: V(4), V(6) or both.
  type: list
  elements: int
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap import network


def ip_versions(service_cidrs: Sequence[str], pod_cidrs: Sequence[str], node_ips: Sequence[str]) -> list[int]:
    """Return the IP versions of a cluster, the primary one first."""
    try:
        return network.ip_versions(service_cidrs, pod_cidrs, node_ips)
    except ValueError as error:
        raise AnsibleFilterError(f"kproxy.dataplane.ip_versions: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"ip_versions": ip_versions}
