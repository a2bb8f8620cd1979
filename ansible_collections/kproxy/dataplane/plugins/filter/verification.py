# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: verification
short_description: Judge a node by named checks
version_added: 1.1.0
description:
  - Turns what was collected on a node into named checks, and these into a table and JUnit.
options:
  _input:
    description: >-
      A dictionary with C(status) and C(agreement) (of C(kproxyctl status) and C(kproxyctl verify)), C(residue),
      C(probe), C(preflight) and C(cluster) (of M(kproxy.dataplane.kube_proxy_info)), each as its source returns it. A
      part that is missing skips its checks.
    type: dict
    required: true
  node:
    description: Name of the node, for JUnit.
    type: str
    required: true
author:
  - kproxy.dataplane contributors (@kproxy)
"""

EXAMPLES = r"""
- name: Show the checks of a node
  ansible.builtin.debug:
    msg: "{{ (evidence | kproxy.dataplane.verification(inventory_hostname)).table }}"
"""

RETURN = r"""
_value:
  description: >-
    C(checks) with C(name), C(result) (V(ok), V(fail), V(warn) or V(skip)) and C(message), C(table) as lines, C(junit)
    as text, and C(failed) as names.
  type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.kproxy.dataplane.plugins.module_utils._verification import checks, report

_EMPTY: dict[str, Any] = {"status": {}, "agreement": {}, "residue": {}, "probe": {}, "preflight": (), "cluster": {}}


def verification(evidence: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return the checks of a node in all forms."""
    try:
        given = {name: evidence.get(name) or empty for name, empty in _EMPTY.items()}
        found = checks.run(checks.Evidence(**given))
    except (AttributeError, KeyError, TypeError) as error:
        raise AnsibleFilterError(f"kproxy.dataplane.verification: {error!r}") from error
    return {
        "checks": [check._asdict() for check in found],
        "failed": [f"{check.name}: {check.message}" for check in found if check.result == checks.FAIL],
        "table": report.table(found),
        "junit": report.junit(node, found),
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"verification": verification}
