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
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.ownership import PREFIX
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.removal import Removal
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.saved_rules import FILES, SavedRules, saved


def capture() -> Capture:
    """Read the node. A tool that is missing means that nothing of its kind is there.

    Raises ToolError, SaveError, DumpError or IpvsadmMissing when something is there and cannot be read.
    """
    surfaces = tuple(_surface(item) for item in iptables_state.tools())
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
