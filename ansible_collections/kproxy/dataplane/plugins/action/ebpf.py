# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads manifests on the controller for the module ebpf."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.plugin_utils._manifests_action import ManifestsAction


class ActionModule(ManifestsAction):
    """Hands the module the objects of the manifests."""
