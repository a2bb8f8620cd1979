# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: real_endpoint
short_description: Refuse an API server address that works only once Services do
version_added: 1.1.0
description:
  - Returns the host of an API server's URL, and fails for an address inside the service ranges or a name that only
    cluster DNS knows.
options:
  _input:
    description: URL of an API server.
    type: str
    required: true
  service_cidrs:
    description: Ranges of the Services.
    type: list
    elements: str
    required: true
author:
  - kproxy.dataplane contributors (@kproxy)
"""

EXAMPLES = r"""
- name: Refuse a control plane endpoint inside the service range
  ansible.builtin.debug:
    msg: "{{ 'https://192.0.2.200:6443' | kproxy.dataplane.real_endpoint(['10.96.0.0/12']) }}"
"""

RETURN = r"""
_value:
  description: The host.
  type: str
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap import endpoint


def real_endpoint(server: str, service_cidrs: Sequence[str]) -> str:
    """Return the host of a server that can be reached before any Service works."""
    try:
        return endpoint.check_server(server, service_cidrs)
    except ValueError as error:
        raise AnsibleFilterError(f"kproxy.dataplane.real_endpoint: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"real_endpoint": real_endpoint}
