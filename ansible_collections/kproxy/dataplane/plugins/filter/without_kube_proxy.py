# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: without_kube_proxy
short_description: Amend kubeadm's and kubelet's configuration so that kube-proxy never comes
version_added: 1.1.0
description:
  - Adds C(addon/kube-proxy) to the skipped phases of init and upgrade and sets C(proxy.disabled) where the version has
    it.
  - Drops C(KubeProxyConfiguration) documents and tells kubelet to make no iptables chains.
  - Everything else stays as it was.
options:
  _input:
    description: The documents, as kubeadm would read them from one file.
    type: list
    elements: dict
    required: true
  upgrade:
    description: Whether to return the C(UpgradeConfiguration) alone, which is all that C(kubeadm upgrade) accepts.
    type: bool
    default: false
author:
  - kproxy.dataplane contributors (@kproxy)
"""

EXAMPLES = r"""
- name: Write the file for kubeadm init
  ansible.builtin.copy:
    content: "{{ documents | kproxy.dataplane.without_kube_proxy | map('to_nice_yaml') | join('---\n') }}"
    dest: /etc/kubernetes/kubeadm.yaml
    mode: "0600"
"""

RETURN = r"""
_value:
  description: The amended documents.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible.utils.display import Display

from ansible_collections.kproxy.dataplane.plugins.module_utils._bootstrap import kubeadm, kubelet


def plain(value: Any) -> Any:
    """Return the value in plain containers: Ansible's own template what they hold and cannot be copied deeply."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [plain(item) for item in value]
    return value


def without_kube_proxy(documents: Sequence[dict[str, Any]], upgrade: bool = False) -> list[dict[str, Any]]:
    """Return the documents without kube-proxy; what version v1beta3 cannot store is said as a warning."""
    try:
        given = plain(documents)
        if upgrade:
            return kubeadm.upgrade_only(given)
        amended = kubeadm.amend(given)
    except (ValueError, TypeError, AttributeError) as error:
        raise AnsibleFilterError(f"kproxy.dataplane.without_kube_proxy: {error}") from error
    for warning in amended.warnings:
        Display().warning(warning)
    return [kubelet.amend(item) if item.get("kind") == "KubeletConfiguration" else item for item in amended.documents]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"without_kube_proxy": without_kube_proxy}
