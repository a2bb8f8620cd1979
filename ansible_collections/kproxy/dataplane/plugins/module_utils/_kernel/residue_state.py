# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Capture what a node holds of kube-proxy, and carry a removal out."""

from __future__ import annotations

import glob
from pathlib import Path

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import (
    ipset_state,
    iptables_state,
    ipvs_state,
    legacy_tables,
    ruleset_survey,
    tool,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.dumps import (
    parse_brief_addresses,
    parse_ipset_save,
    parse_ipvs_save,
    parse_nft_tables,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.iptables_save import SaveError, left_out, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.ledger import Capture, Surface
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.ownership import (
    KUBE_PROXY,
    PREFIX,
    chain_by_name,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.removal import Removal
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.saved_rules import FILES, SavedRules, saved

#: Those that iptables knows.
_TABLES = ("raw", "mangle", "nat", "filter", "security")


def capture() -> Capture:
    """Read the node. A tool may be missing as long as nothing of kube-proxy's is there that only it could show.

    Raises ToolError, SaveError, DumpError or IpvsadmMissing when something is there and cannot be read.
    """
    tools = iptables_state.tools()
    _refuse_unseen({(item.backend, item.family) for item in tools})
    surfaces = tuple(_surface(item) for item in tools)
    nft = tool.find("nft")
    return Capture(
        surfaces,
        parse_ipset_save(ipset_state.save()),
        parse_ipvs_save(ipvs_state.save()),
        parse_brief_addresses(ipvs_state.brief_addresses()),
        parse_nft_tables(tool.run([nft, "list", "tables"])) if nft else (),
    )


def saved_rules() -> list[SavedRules]:
    """Return the files loaded at boot that would bring kube-proxy's objects back; one that cannot be read is none."""
    texts = {}
    for path in (path for pattern in FILES for path in glob.glob(pattern)):
        try:
            texts[path] = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return saved(texts)


def _refuse_unseen(shown: set[tuple[str, int]]) -> None:
    """Raise SaveError if kube-proxy has chains of a back end and family for which this host has no tools."""
    for family, word, tool_name in ((4, "ip", "iptables"), (6, "ip6", "ip6tables")):
        for backend in (iptables_state.LEGACY, iptables_state.NFT):
            if (backend, family) in shown:
                continue
            if backend == iptables_state.LEGACY:
                chains = legacy_tables.chain_names(family)
            else:
                chains = [(table, name) for table in _TABLES for name in ruleset_survey.chain_names(word, table)]
            for table, name in chains:
                owner = chain_by_name(table, name)
                if owner is not None and owner.owner == KUBE_PROXY:
                    raise SaveError(
                        f"{backend} iptables of {word} holds {name} in table {table}, which kube-proxy made with tools "
                        f"of its own: this host has no {tool_name}-{backend}-save to read it with. Install {tool_name} "
                        f"with the back end {backend} (package iptables, or iptables-{backend}), and run again"
                    )


def _surface(item: iptables_state.IptablesTool) -> Surface:
    dump = iptables_state.save(item)
    family = "ip" if item.family == 4 else "ip6"
    for table in left_out(dump):
        hidden = [name for name in ruleset_survey.chain_names(family, table) if name.startswith(PREFIX)]
        if hidden:
            raise SaveError(
                f"{item.save} does not show table {table}, which holds {hidden[0]} and {len(hidden) - 1} more {PREFIX} "
                f"chains: somebody put rules into it by nft that iptables has no words for. Find them with nft list "
                f"table {family} {table}, move them to a table of their own, and run again"
            )
    return Surface(item.backend, item.family, parse(dump))


def execute(removal: Removal) -> None:
    """Carry the removal out in its order. Raises ToolError at the first step that fails; every step before it holds."""
    by_surface = {(item.backend, item.family): item for item in iptables_state.tools()}
    for restore in removal.restores:
        iptables_state.restore(by_surface[restore.backend, restore.family], restore.text)
    for name in removal.ipsets:
        ipset_state.destroy(name)
    for server in removal.virtual_servers:
        ipvs_state.delete(server)
    for name in removal.interfaces:
        ipvs_state.delete_interface(name)
    for table in removal.nft_tables:
        tool.run([tool.find("nft") or "nft", "delete", "table", table.family, table.name])


def nft_dump(removal: Removal) -> str:
    """Return the nftables tables of a removal as text that `nft -f` loads."""
    nft = tool.find("nft") or "nft"
    return "".join(tool.run([nft, "list", "table", table.family, table.name]) for table in removal.nft_tables)
