# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Checks of kernel settings: set what is missing, never lower what is higher, say what cannot be set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.flows import SOURCE_PORTS
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.findings import (
    FIX,
    OK,
    SKIP,
    WARN,
    Finding,
    Sysctl,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import (
    NodeFacts,
    Options,
    Version,
    parse_version,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.port_ranges import (
    PortRange,
    covers,
    format_set,
    merge,
    parse_range,
    parse_set,
)

CONNTRACK_MAX = "net.netfilter.nf_conntrack_max"
TCP_BE_LIBERAL = "net.netfilter.nf_conntrack_tcp_be_liberal"
LOCAL_PORT_RANGE = "net.ipv4.ip_local_port_range"
LOCAL_RESERVED_PORTS = "net.ipv4.ip_local_reserved_ports"
BRIDGE_CALL = {4: "net.bridge.bridge-nf-call-iptables", 6: "net.bridge.bridge-nf-call-ip6tables"}
ROUTE_LOCALNET = "net.ipv4.conf.all.route_localnet"
# A forwarding node takes router advertisements at 2 only; a slash stands for a dot of the device's name.
ACCEPT_RA = "net.ipv6.conf.%s.accept_ra"
FORWARDING = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}

# What eBPF gives connections that it masquerades.
MASQUERADED = PortRange(*SOURCE_PORTS)

# kube-proxy stops scaling its table with the cores here: 2^20 entries are 320 MiB of kernel memory.
CONNTRACK_CEILING = 1048576

# From 6.1 on NAT translates TCP packets outside the window, so that they no longer reach the client untranslated and
# reset the connection.
OUT_OF_WINDOW_TRANSLATED: Version = (6, 1)


def forwarding(facts: NodeFacts, options: Options) -> list[Finding]:
    """A node that does not forward delivers to none but its own processes."""
    findings = []
    for family in options.families:
        name = FORWARDING[family]
        current = facts.sysctls.get(name)
        check = f"ipv{family}_forwarding"
        if current is not None and current != "0":
            findings.append(Finding(check, OK, f"{name} is {current}"))
        elif current is None and family == 6 and facts.sysctls:
            findings.append(Finding(check, SKIP, "the kernel has no IPv6"))
        elif facts.sysctls:
            found = _set(facts, check, Sysctl(name, "1"), f"{name} is off, so packets never reach pods")
            findings.append(_keeping_routes(facts, found) if family == 6 else found)
    return findings


def _keeping_routes(facts: NodeFacts, found: Finding) -> Finding:
    """Return the finding with what keeps default routes that the kernel has from router advertisements."""
    if found.result != FIX or not facts.ra_devices:
        return found
    kept = tuple(Sysctl(ACCEPT_RA % device.replace(".", "/"), "2") for device in facts.ra_devices)
    return replace(
        found,
        message=f"{found.message}; {', '.join(facts.ra_devices)} goes on accepting router advertisements, from which "
        "the node has its IPv6 default route (accept_ra 2)",
        sysctls=kept + found.sysctls,
    )


def conntrack_max(facts: NodeFacts, options: Options) -> Finding:
    """The connection table must hold the connections of a busy node; a higher value is left alone."""
    wanted = max(options.conntrack_min, min(options.conntrack_per_core * facts.cores, CONNTRACK_CEILING))
    current = facts.sysctls.get(CONNTRACK_MAX)
    if current is not None and int(current) >= wanted:
        return Finding("conntrack_max", OK, f"{CONNTRACK_MAX} is {current}")
    found = "not known" if current is None else f"{current}, which is low"
    return _set(facts, "conntrack_max", Sysctl(CONNTRACK_MAX, str(wanted)), f"{CONNTRACK_MAX} is {found}")


def tcp_be_liberal(facts: NodeFacts, options: Options) -> Finding:
    """Kernels before 6.1 reset connections by out-of-window packets unless conntrack is liberal about them.

    Dropping packets in state INVALID would hide the same fault but breaks multi-homed nodes, so no such rule exists.
    """
    check = "tcp_be_liberal"
    if parse_version(facts.kernel) >= OUT_OF_WINDOW_TRANSLATED:
        return Finding(check, OK, f"not needed on kernel {facts.kernel}")
    if facts.sysctls.get(TCP_BE_LIBERAL, "0") != "0":
        return Finding(check, OK, f"{TCP_BE_LIBERAL} is on")
    risk = f"kernel {facts.kernel} does not translate out-of-window TCP packets, which can reset connections"
    if options.tcp_be_liberal:
        return _set(facts, check, Sysctl(TCP_BE_LIBERAL, "1"), risk)
    return Finding(check, WARN, f"{risk}; set preflight_tcp_be_liberal to true, or use kernel 6.1 or later")


def bridge_netfilter(facts: NodeFacts, options: Options) -> Finding:
    """Replies between pods on one bridge of a node meet the translation only with br_netfilter."""
    check = "br_netfilter"
    if not facts.pods_on_bridge:
        return Finding(check, SKIP, "no pods on a bridge of this node")
    missing = facts.br_netfilter is False or facts.br_netfilter is None
    sysctls = tuple(
        Sysctl(BRIDGE_CALL[family], "1")
        for family in options.families
        if missing or facts.sysctls.get(BRIDGE_CALL[family]) != "1"
    )
    if not missing and not sysctls:
        return Finding(check, OK, f"bridge {facts.pods_on_bridge} hands its packets to netfilter")
    problem = (
        f"the packets of pods on bridge {facts.pods_on_bridge} do not pass netfilter: replies miss the translation"
    )
    if not facts.sysctl_writable:
        return Finding(check, WARN, f"{problem}; load br_netfilter on the host, this node cannot")
    return Finding(check, FIX, problem, sysctls=sysctls, modules=("br_netfilter",) if missing else ())


def route_localnet(facts: NodeFacts, _options: Options) -> Finding:
    """Mode iptables of kube-proxy opens loopback to the network for its NodePorts, and leaves it so (CVE-2020-8558)."""
    check = "route_localnet"
    if facts.sysctls.get(ROUTE_LOCALNET, "0") == "0":
        return Finding(check, OK, "loopback cannot be reached from the network")
    return Finding(
        check,
        WARN,
        f"{ROUTE_LOCALNET} is on, as kube-proxy's iptables mode leaves it: without kubelet's KUBE-FIREWALL, neighbours "
        "reach what listens on 127.0.0.1. Nothing here needs it: set it to 0 once kube-proxy is gone",
    )


def reserved_ports(facts: NodeFacts, options: Options) -> Finding:
    """An outgoing connection that takes a NodePort's number has its replies stolen by that NodePort.

    The same with eBPF and the ports that masqueraded connections leave by. Their table is not the kernel's, so
    neither knows of the other.
    """
    check = "ip_local_reserved_ports"
    local = facts.sysctls.get(LOCAL_PORT_RANGE)
    if local is None:
        return Finding(check, SKIP, f"{LOCAL_PORT_RANGE} is not known")
    taken = {"the NodePorts": options.node_ports}
    if options.backend == "ebpf":
        taken["the ports of masqueraded connections"] = MASQUERADED
    local_ports = parse_range(local)
    wanted = {name: ports for name, ports in taken.items() if local_ports.overlaps(ports)}
    if not wanted:
        return Finding(check, OK, f"local ports {local_ports} keep clear of {_listed(taken)}")
    reserved = parse_set(facts.sysctls.get(LOCAL_RESERVED_PORTS, ""))
    missing = {name: ports for name, ports in wanted.items() if not covers(reserved, ports)}
    if not missing:
        return Finding(check, OK, f"{_listed(wanted)} are reserved")
    return _set(
        facts,
        check,
        Sysctl(LOCAL_RESERVED_PORTS, format_set(merge([*reserved, *missing.values()]))),
        f"local ports {local_ports} cover {_listed(missing)}, which are not reserved",
    )


def _listed(ports: Mapping[str, PortRange]) -> str:
    return " and ".join(f"{name} {ranges}" for name, ranges in ports.items())


def _set(facts: NodeFacts, check: str, sysctl: Sysctl, problem: str) -> Finding:
    """Return the fix, or a warning where this node does not let anybody set the value."""
    if facts.writable(sysctl.name):
        return Finding(check, FIX, f"{problem}; set to {sysctl.value}", sysctls=(sysctl,))
    return Finding(check, WARN, f"{problem}; it should be {sysctl.value} and cannot be set from this node")
