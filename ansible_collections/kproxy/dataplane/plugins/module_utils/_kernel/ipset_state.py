# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""List and destroy ipsets."""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import tool


def save() -> str:
    """Return `ipset save`, empty where the tool or the kernel part is missing (then there are no sets)."""
    ipset = tool.find("ipset")
    if ipset is None:
        return ""
    try:
        return tool.run([ipset, "save"])
    except tool.ToolError as error:
        if "Cannot open session to kernel" in error.stderr:
            return ""
        raise


def destroy(name: str) -> None:
    """Destroy one set. Raises ToolError while a rule or another set uses it."""
    tool.run([tool.find("ipset") or "ipset", "destroy", name])
