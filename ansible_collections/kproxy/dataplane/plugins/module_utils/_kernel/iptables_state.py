# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Read and change iptables rules of both back ends, legacy and nft, for IPv4 and IPv6.

A host may hold rules in both at once (a container brought its own iptables), and each back end sees only its own.
Saving creates no table in either: legacy looks at /proc/net/ip_tables_names, nft at what exists.
"""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import tool

LEGACY = "legacy"
NFT = "nft"

# Wait for /run/xtables.lock this long; kubelet and CNI plugins hold it for moments.
_LOCK_WAIT_SECONDS = 10


class IptablesTool(NamedTuple):
    """The pair of tools for one back end and family."""

    backend: str
    family: int  # 4 or 6
    save: str
    restore: str


def _plain_backend(command: str) -> str:
    return NFT if "nf_tables" in tool.run([command, "-V"]) else LEGACY


def tools() -> tuple[IptablesTool, ...]:
    """Return the tools the host has; none is a fine answer.

    Where a distribution installs only the plain names, their own version text says which back end they are.
    """
    found: list[IptablesTool] = []
    for family, base in ((4, "iptables"), (6, "ip6tables")):
        backends = set()
        for backend in (LEGACY, NFT):
            save, restore = tool.find(f"{base}-{backend}-save"), tool.find(f"{base}-{backend}-restore")
            if save and restore:
                backends.add(backend)
                found.append(IptablesTool(backend, family, save, restore))
        plain, save, restore = tool.find(base), tool.find(f"{base}-save"), tool.find(f"{base}-restore")
        if plain and save and restore and len(backends) < 2:
            backend = _plain_backend(plain)
            if backend not in backends:
                found.append(IptablesTool(backend, family, save, restore))
    return tuple(found)


def save(item: IptablesTool) -> str:
    """Return the dump of all tables of one back end and family."""
    return tool.run([item.save])


def restore(item: IptablesTool, text: str) -> None:
    """Commit one table's change in one transaction. Raises ToolError, with nothing changed, when a line fails."""
    tool.run([item.restore, "--noflush", "--wait", str(_LOCK_WAIT_SECONDS)], text)
