# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The way back, as one shell script that needs neither Python, nor Ansible, nor the API server.

It is written to the node before anything changes and run by a timer unless somebody disarms it. It first brings
kube-proxy's objects back and removes our tables last, so that open connections stay translated throughout.
Each step is tried on its own: a half-done takeover is undone as far as it went.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.placement import CANARY, WHOLE
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.ledger import Capture
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.ownership import IPVS_INTERFACE
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue.removal import Removal, restoration

#: Added to the script's own name: the file that says that it has run.
RAN = ".ran"
_END = "KPROXY-UNDO-END"
_LABEL_TRIES = 60
_LABEL_PAUSE_SECONDS = 5


class Saved(NamedTuple):
    """What is needed beyond the parsed capture: the tools' own texts, which they load again."""

    capture: Capture
    removal: Removal
    iptables_restore: dict[tuple[str, int], str]  # (back end, family) -> path of the tool
    ipset_save: str
    ipvs_save: str
    nft_dump: str


#: For a node whose kube-proxy needs nothing put back.
NOTHING_SAVED = Saved(Capture(), Removal(), {}, "", "", "")


def _here(command: str, text: str, otherwise: str = "") -> str:
    """Return a command that reads the text, and what to run when it fails."""
    if _END in text.splitlines():
        raise ValueError(f"a saved dump holds the line {_END}")
    alternative = f" || {otherwise}" if otherwise else ""
    return f"{command} <<'{_END}'{alternative}\n{text}{_END}\n"


def _sets(text: str, names: Iterable[str]) -> str:
    """Return the lines of `ipset save` that make and fill the named sets."""
    wanted = set(names)
    return "".join(line + "\n" for line in text.splitlines() if line.split()[1:2] and line.split()[1] in wanted)


def _iptables(saved: Saved) -> Iterable[str]:
    surfaces = {(item.backend, item.family): item for item in saved.capture.surfaces}
    for restore in saved.removal.restores:
        surface = surfaces[restore.backend, restore.family]
        tool = shlex.quote(saved.iptables_restore[restore.backend, restore.family]) + " --noflush --wait 10"
        # Which jumps are still there is not known. Each goes on its own, as one that is missing would keep the others.
        for rule in restore.unlinked:
            yield _here(f"{tool} 2>/dev/null", f"*{restore.table}\n{rule.deletion}\nCOMMIT\n")
        yield "exact=yes\n" + _here(f"{tool} 2>/dev/null", restoration(surface, restore), "exact=no")
        yield 'if [ "$exact" = no ]; then\n' + _here(tool, restoration(surface, restore, on_top=True)) + "fi\n"


def _ipvs(saved: Saved) -> Iterable[str]:
    for interface in saved.capture.interfaces:
        if interface.name in saved.removal.interfaces:
            yield f"ip link add {IPVS_INTERFACE} type dummy 2>/dev/null\n"
            for address in interface.addresses:
                length = 128 if ":" in address else 32
                yield f"ip address replace {address}/{length} dev {IPVS_INTERFACE}\n"
    if saved.removal.virtual_servers and saved.ipvs_save:
        ports = {str(server).rsplit("/", 1)[0] for server in saved.removal.virtual_servers}
        lines = [line for line in saved.ipvs_save.splitlines() if len(line.split()) > 2 and line.split()[2] in ports]
        yield _here("ipvsadm -R", "".join(line + "\n" for line in lines))


def script(saved: Saved, units: Iterable[str], node_name: str, kubelet_kubeconfig: str, label: str) -> str:
    """Return the script. `units` are stopped and disabled first; without a kubeconfig the label is left alone."""
    parts = [
        "#!/bin/sh\n# Gives this node back to kube-proxy as it was before the takeover. Safe to run more than once.\n",
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
        f'if [ -f "$0" ]; then : > "$0{RAN}"; fi\n',
    ]
    parts += [f"systemctl disable --now {shlex.quote(unit)} 2>/dev/null\n" for unit in units]
    sets = _sets(saved.ipset_save, saved.removal.ipsets)
    if sets:
        parts.append(_here("ipset -exist restore", sets))
    for table in saved.removal.nft_tables:
        parts.append(f"nft delete table {table.family} {table.name} 2>/dev/null\n")
    if saved.nft_dump:
        parts.append(_here("nft -f -", saved.nft_dump))
    parts += _iptables(saved)
    parts += _ipvs(saved)
    for place in (CANARY, WHOLE):
        parts += [f"nft delete table {family} {place.table} 2>/dev/null\n" for family in ("ip", "ip6")]
    if node_name and kubelet_kubeconfig:
        config, node = shlex.quote(kubelet_kubeconfig), shlex.quote(node_name)
        parts.append(
            f"tries={_LABEL_TRIES}\n"
            f"while [ -r {config} ] && command -v kubectl >/dev/null && [ $tries -gt 0 ]; do\n"
            f"  kubectl --kubeconfig {config} label node {node} {label}- && break\n"
            f"  tries=$((tries - 1)); sleep {_LABEL_PAUSE_SECONDS}\n"
            "done\n"
        )
    parts.append("exit 0\n")
    return "".join(parts)
