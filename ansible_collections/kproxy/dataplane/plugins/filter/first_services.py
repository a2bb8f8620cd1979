# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: first_services
short_description: Make the Services that a new node needs before anybody can be asked for Services
version_added: 1.1.0
description:
  - Returns the Service of the API server with its endpoints, and cluster DNS without any, at the addresses that they
    have in every cluster of kubeadm, IPv4 or IPv6.
options:
  _input:
    description: Ranges of the Services, the primary one first.
    type: list
    elements: str
    required: true
  api_servers:
    description: Addresses of the API servers.
    type: list
    elements: str
    required: true
  port:
    description: Where the API servers listen.
    type: int
    default: 6443
author:
  - kproxy.dataplane contributors (@kproxy)
"""

EXAMPLES = r"""
- name: Put the API server's and cluster DNS's frontends into the kernel
  kproxy.dataplane.nftables:
    objects: "{{ ['fd00:10:96::/108'] | kproxy.dataplane.first_services(['2001:db8::11']) }}"
"""

RETURN = r"""
_value:
  description: Two Services and an EndpointSlice.
  type: list
  elements: dict
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap import preload


def first_services(service_cidrs: Sequence[str], api_servers: Sequence[str], port: int = 6443) -> list[dict[str, Any]]:
    """Return the objects of the API server's Service and of cluster DNS."""
    try:
        return preload.first_services(service_cidrs, api_servers, int(port))
    except ValueError as error:
        raise AnsibleFilterError(f"kproxy.dataplane.first_services: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"first_services": first_services}
