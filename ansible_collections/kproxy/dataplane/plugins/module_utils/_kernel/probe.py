# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What this node can do, found by trying it in a network namespace that nobody else sees."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import bpf_probe, ruleset_survey, sysctl
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import NoCgroup2, mount_point
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack import Conntrack
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.conntrack_protocol import UDP, Flow
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.namespace import IsolationError, run_isolated
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nfnetlink import Nfnetlink
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.nft_command import NftCommand, NftError
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.pods_on_node import (
    containers_by_pod,
    guest_runtimes,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.router_advertisements import endangered_devices
from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import SetName, Transaction

_TABLE = "kproxy-probe"
_BPFFS = "/sys/fs/bpf"
_BTF = "/sys/kernel/btf/vmlinux"
_CAP_NET_ADMIN = 12

#: Settings that decide whether Services work on a node.
SYSCTLS = (
    "net.ipv4.ip_forward",
    "net.ipv6.conf.all.forwarding",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.conf.all.rp_filter",
    "net.ipv4.conf.all.route_localnet",
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_tcp_be_liberal",
    "net.netfilter.nf_conntrack_udp_timeout",
    "net.netfilter.nf_conntrack_udp_timeout_stream",
)

#: Bridges that network plugins hang pods on.
_POD_BRIDGES = ("cni0", "cbr0", "kube-bridge")

#: Each loads by itself; what the tables of this collection are made of.
_NFT_FEATURES = {
    "nft_ip": "chain c { type nat hook prerouting priority dstnat; }",
    "nft_ip6": "chain c { type nat hook prerouting priority dstnat; }",
    "nft_verdict_map": """
        map m { type ipv4_addr . inet_proto . inet_service : verdict; }
        chain c { ip daddr . meta l4proto . th dport vmap @m; }""",
    "nft_dnat_map": """
        map m { typeof ip daddr . tcp dport . numgen random mod 65536 : ip daddr . tcp dport; }
        chain c { dnat ip to ip daddr . tcp dport . numgen random mod 5 map @m; }""",
    "nft_concatenated_interval": """
        set s { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval; }
        chain c { ip daddr . meta l4proto . th dport . ip saddr @s drop; }""",
    "nft_learned_map": """
        map m { typeof ip saddr : ip daddr . tcp dport; flags dynamic,timeout; timeout 1h; size 1024; }
        chain c { meta l4proto tcp update @m { ip saddr timeout 60s : ip daddr . tcp dport }; }""",
    "nft_fib": "chain c { fib daddr type local accept; }",
    "nft_masquerade_random": "chain c { type nat hook postrouting priority srcnat; masquerade fully-random; }",
    "nft_reject": "chain c { type filter hook forward priority 0; reject with icmp port-unreachable; }",
}


def collect_facts() -> dict[str, Any]:
    """Return what is known about this node, as JSON types; changes nothing on it.

    Keys: kernel, nft ("absent" if there is none), cores, cap_net_admin, features (name -> bool; one that could not be
    tried is left out), probe_errors (why a feature is missing or was not tried), sysctls, sysctls_read_only,
    sysctl_writable, tables ("ip kproxy"), base_chains, cgroup2 (mount point or ""), bpffs, btf, br_netfilter,
    ra_devices (that would lose their IPv6 default route once the node forwards), pods_on_bridge, containers (of each
    pod, by NAMESPACE/NAME), guest_runtimes.
    """
    capable = has_net_admin()
    errors: list[str] = []
    features: dict[str, bool] = {}
    if capable:
        probed, reasons = _try(errors, lambda: run_isolated(_probe_features), [{}, []])
        features.update(probed)
        errors += reasons
        features.update(_bpf_features())
    else:
        errors.append("features were not probed: no CAP_NET_ADMIN")
    features["btf"] = os.path.exists(_BTF)
    cgroup2 = _cgroup2()
    features["cgroup2"] = bool(cgroup2)
    sysctls = sysctl.read_all(SYSCTLS)
    read_only = sorted(name for name in sysctls if not sysctl.writable(name))
    return {
        "kernel": platform.release(),
        "nft": _nft_version() or "absent",
        "cores": os.cpu_count() or 1,
        "cap_net_admin": capable,
        "features": features,
        "probe_errors": errors,
        "sysctls": sysctls,
        "sysctls_read_only": read_only,
        "sysctl_writable": len(read_only) < len(sysctls),
        "tables": [" ".join(table) for table in _try(errors, ruleset_survey.tables, [])] if capable else [],
        "base_chains": [c._asdict() for c in _try(errors, ruleset_survey.base_chains, [])] if capable else [],
        "cgroup2": cgroup2,
        "bpffs": bpf_probe.is_bpffs(_BPFFS),
        "btf": features["btf"],
        "ra_devices": endangered_devices(),
        "br_netfilter": os.path.isdir("/proc/sys/net/bridge"),
        "containers": containers_by_pod(),
        "guest_runtimes": guest_runtimes(),
        "pods_on_bridge": next((name for name in _POD_BRIDGES if os.path.isdir(f"/sys/class/net/{name}/bridge")), ""),
    }


def has_net_admin(status: str = "/proc/self/status") -> bool:
    """Tell whether this process has CAP_NET_ADMIN in its effective set."""
    with open(status, encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1)
    return False


def probe_nft(command: NftCommand) -> tuple[dict[str, bool], list[str]]:
    """Try to load each piece of our tables, in a namespace of its own; return what works and why the rest does not."""
    found: dict[str, bool] = {}
    reasons: list[str] = []
    for feature, text in _NFT_FEATURES.items():
        family = "ip6" if feature == "nft_ip6" else "ip"
        try:
            command.load(f"table {family} {_TABLE}-{feature.replace('_', '-')} {{\n{text}\n}}\n")
        except NftError as error:
            reasons.append(f"{feature}: {error}")
            if error.returncode is None:  # missing or overdue: nothing was learned about the kernel
                break
            found[feature] = False
        else:
            found[feature] = True
    return found, reasons


def probe_elements(command: NftCommand) -> tuple[dict[str, bool], list[str]]:
    """Try elements over netlink, and whether the kernel has the delete that tolerates a missing element."""
    command.load(f"table ip {_TABLE} {{ set s {{ type ipv4_addr; }}; }}")
    with Nfnetlink(_TABLE) as kernel:
        name = SetName(4, "s")
        transaction = Transaction()
        transaction.add(name, bytes(4))
        kernel.commit(transaction)
        kept = kernel.dump_elements(name) == [(bytes(4), None, None)]
        kernel.delete_elements_ignoring_missing(name, [bytes(4), b"\1" * 4])
        return {"nft_elements": kept, "nft_destroy_element": bool(kernel.destroy_works)}, []


def probe_conntrack() -> tuple[dict[str, bool], list[str]]:
    """Try to read and delete a tracked flow, in a namespace of its own."""
    flow = Flow(4, UDP, b"\x0a\0\0\1", b"\x0a\0\0\2", 1024, 53, b"\x0a\0\0\3", 53)
    with Conntrack() as table:
        table.insert(flow)
        found = list(table.flows(4))
        works = len(found) == 1 and table.delete(found) == 1 and not list(table.flows(4))
        return {"conntrack_delete": works}, []


def _probe_features() -> list[Any]:
    """Run every probe in this process's namespace; return features and reasons."""
    found: dict[str, bool] = {}
    reasons: list[str] = []
    command = NftCommand()
    probes: tuple[tuple[str, Callable[[], tuple[dict[str, bool], list[str]]]], ...] = (
        ("nft", lambda: probe_nft(command)),
        ("nft_elements", lambda: probe_elements(command)),
        ("conntrack_delete", probe_conntrack),
    )
    for name, probe in probes:
        try:
            features, why = probe()
        except NftError as error:
            reasons.append(f"{name}: {error}")
        except (KernelError, OSError) as error:
            found[name] = False
            reasons.append(f"{name}: {error}")
        else:
            found.update(features)
            reasons += why
    return [found, reasons]


def _bpf_features() -> dict[str, bool]:
    able = bpf_probe.probe()
    return {
        "socket_hooks": able.socket_hooks,
        "cgroup_getpeername": able.socket_hooks,
        "set_retval": able.set_retval,
        "tcx": able.tcx,
    }


def _nft_version() -> str:
    try:
        return ".".join(map(str, NftCommand().version()))
    except NftError:
        return ""


def _cgroup2() -> str:
    try:
        return mount_point()
    except (NoCgroup2, OSError):
        return ""


def _try(errors: list[str], ask: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return ask()
    except (IsolationError, KernelError, OSError) as error:
        errors.append(str(error))
        return otherwise
