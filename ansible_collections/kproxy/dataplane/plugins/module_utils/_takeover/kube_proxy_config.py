# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Carry the meaning of a KubeProxyConfiguration over, field by field, or say plainly what is lost.

Defaults are those of kube-proxy 1.36 (pkg/proxy/apis/config/v1alpha1/defaults.go), because an absent field has a
meaning too: NodePorts answer on all addresses in the iptables and ipvs modes, and on the primary one in nftables mode.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import duration, field_types
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover.kube_proxy_flags import Flags
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover.listen_addresses import (
    HEALTHZ_PORT,
    METRICS_PORT,
    default_hosts,
    listen_address,
)

CARRIED = "carried"
NOT_NEEDED = "not-needed"
DIFFERS = "differs"
"""Nobody set it, and kube-proxy's default did something that is not done here: told, but nothing to give up by name."""
NO_COUNTERPART = "no-counterpart"
UNKNOWN = "unknown"

LOCALHOST_GATE = "KubeProxyNFTablesLocalhostNodePorts"
# Those that decide what becomes of a packet.
_GATES = frozenset((LOCALHOST_GATE, "AllowServiceExternalIPs"))
# kube-proxy stops scaling its table with the cores here.
_CONNTRACK_CEILING = 1048576


class Finding(NamedTuple):
    """What became of one field that was set."""

    field: str
    value: Any
    outcome: str
    note: str


class Translation(NamedTuple):
    """`config` is for this collection (KubeProxyConfiguration's names); `lost` is what has to be acknowledged."""

    config: dict[str, Any]
    sysctls: dict[str, int]
    healthz_bind_address: str
    metrics_bind_address: str
    findings: tuple[Finding, ...]

    @property
    def lost(self) -> tuple[Finding, ...]:
        return tuple(item for item in self.findings if item.outcome in (NO_COUNTERPART, UNKNOWN))


_RENDERED = "changes are applied as they come, and a full pass repairs drift"
_NO_VIP_ON_NODE = "not needed: service addresses are never bound to an interface"
_OWN_PROCESS = "the sidecar has its own setting"

# Fields whose presence alone decides the answer.
_ANSWERS: dict[str, tuple[str, str]] = {
    "mode": (CARRIED, "says which section counts; we render nftables or eBPF"),
    "detectLocalMode": (CARRIED, ""),
    "detectLocal.bridgeInterface": (CARRIED, ""),
    "detectLocal.interfaceNamePrefix": (CARRIED, "matched by name, so that interfaces may come later"),
    "clusterCIDR": (CARRIED, ""),
    "nodePortAddresses": (CARRIED, ""),
    "hostnameOverride": (CARRIED, "the node's own name, which tells local endpoints"),
    "bindAddress": (CARRIED, "stands for the primary address of its family"),
    "healthzBindAddress": (CARRIED, "served by the sidecar"),
    "metricsBindAddress": (CARRIED, "served by the sidecar"),
    "conntrack.maxPerCore": (CARRIED, "as a sysctl"),
    "conntrack.min": (CARRIED, "as a sysctl"),
    "conntrack.tcpEstablishedTimeout": (CARRIED, "as a sysctl"),
    "conntrack.tcpCloseWaitTimeout": (CARRIED, "as a sysctl"),
    "conntrack.tcpBeLiberal": (CARRIED, "as a sysctl"),
    "conntrack.udpTimeout": (CARRIED, "as a sysctl"),
    "conntrack.udpStreamTimeout": (CARRIED, "as a sysctl"),
    "bindAddressHardFail": (NOT_NEEDED, "a port that cannot be bound is reported and tried again"),
    "configSyncPeriod": (NOT_NEEDED, _RENDERED),
    "iptables.syncPeriod": (NOT_NEEDED, _RENDERED),
    "iptables.minSyncPeriod": (NOT_NEEDED, _RENDERED),
    "nftables.syncPeriod": (NOT_NEEDED, _RENDERED),
    "nftables.minSyncPeriod": (NOT_NEEDED, _RENDERED),
    "ipvs.syncPeriod": (NOT_NEEDED, _RENDERED),
    "ipvs.minSyncPeriod": (NOT_NEEDED, _RENDERED),
    "ipvs.strictARP": (NOT_NEEDED, _NO_VIP_ON_NODE + ", so the node never answers ARP for one"),
    "ipvs.excludeCIDRs": (NOT_NEEDED, _NO_VIP_ON_NODE + ", and foreign virtual servers are never touched"),
    "oomScoreAdj": (NOT_NEEDED, _OWN_PROCESS),
    "clientConnection.kubeconfig": (NOT_NEEDED, "the sidecar gets its own client certificate"),
    "clientConnection.acceptContentTypes": (NOT_NEEDED, _OWN_PROCESS),
    "clientConnection.contentType": (NOT_NEEDED, _OWN_PROCESS),
    "clientConnection.qps": (NOT_NEEDED, "one watch per kind needs no rate limit"),
    "clientConnection.burst": (NOT_NEEDED, "one watch per kind needs no rate limit"),
    "showHiddenMetricsForVersion": (NOT_NEEDED, "no metric is hidden"),
    "ipvs.tcpTimeout": (NO_COUNTERPART, "IPVS's own timeout; conntrack's apply instead"),
    "ipvs.tcpFinTimeout": (NO_COUNTERPART, "IPVS's own timeout; conntrack's apply instead"),
    "ipvs.udpTimeout": (NO_COUNTERPART, "IPVS's own timeout; conntrack's apply instead"),
    "enableProfiling": (NO_COUNTERPART, "there is no profiling endpoint"),
}
_KEYWORDS = ("primary", "localhost", "all")
_OWN_HEALTHZ, _OWN_METRICS = f"0.0.0.0:{HEALTHZ_PORT}", f"127.0.0.1:{METRICS_PORT}"
_MODE_SECTION = {"iptables": "iptables", "ipvs": "iptables", "nftables": "nftables"}
_IGNORED_FIELDS = frozenset(("apiVersion", "kind"))
_WHOLE_SECTIONS_NOT_NEEDED = {
    "logging": _OWN_PROCESS,
    "winkernel": "Windows only",
    "windowsRunAsService": "Windows only",
}
# kubeadm writes them into its ConfigMap for ever, some of them since 2018.
_READ_BY_NOBODY = frozenset(("portRange", "udpIdleTimeout", "resourceContainer", "conntrack.max"))
_SECTIONS = ("clientConnection", "conntrack", "detectLocal", "iptables", "ipvs", "nftables")
_EMPTY: tuple[Any, ...] = ("", None, False, "0s", "0", 0)


def _empty(value: Any) -> bool:
    """Whether a value is what Go writes for a field that nobody set."""
    if isinstance(value, Mapping):
        return all(_empty(inner) for inner in value.values())
    return value in (*_EMPTY, [])


def _flatten(config: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if name in _SECTIONS and value is None:
            continue
        if name in _SECTIONS and not isinstance(value, Mapping):
            raise ValueError(f"{name} is {value!r}; kube-proxy takes a section with fields of its own here")
        if name in _SECTIONS:
            flat.update({f"{name}.{inner}": inner_value for inner, inner_value in value.items()})
        elif name not in _IGNORED_FIELDS:
            flat[name] = value
    return flat


def _judge(field: str, value: Any, mode: str) -> list[Finding]:
    """Judge one field that is there."""
    section, _dot, name = field.partition(".")
    if field == "featureGates":
        return [_judge_gate(gate, state) for gate, state in (value or {}).items()]
    if section in _WHOLE_SECTIONS_NOT_NEEDED:
        return [Finding(field, value, NOT_NEEDED, _WHOLE_SECTIONS_NOT_NEEDED[section])]
    if name in ("masqueradeAll", "masqueradeBit") and section in ("iptables", "nftables"):
        if section == _MODE_SECTION[mode]:
            return [Finding(field, value, CARRIED, f"the section that mode {mode} reads")]
        return [Finding(field, value, NOT_NEEDED, f"mode {mode} does not read this section")]
    if field in _READ_BY_NOBODY:
        return [Finding(field, value, NOT_NEEDED, "kube-proxy itself does not read it any more")]
    if field == "iptables.localhostNodePorts":
        return [] if value is None else [_judge_localhost(value, mode)]
    if field == "ipvs.scheduler":
        if mode != "ipvs" or value in ("", "random"):
            return [Finding(field, value, NOT_NEEDED, f"mode {mode} does not read this section")]
        return [Finding(field, value, NO_COUNTERPART, "endpoints are chosen at random, each with equal chance")]
    outcome, note = _ANSWERS.get(field, (UNKNOWN, "not a field of KubeProxyConfiguration v1alpha1 that is known here"))
    if field.startswith("ipvs.") and mode != "ipvs" and outcome == NO_COUNTERPART:
        return [Finding(field, value, NOT_NEEDED, f"mode {mode} does not read this section")]
    if outcome in (NO_COUNTERPART, UNKNOWN) and _empty(value):
        return []
    return [Finding(field, value, outcome, note)]


def _judge_gate(gate: str, state: Any) -> Finding:
    if gate in _GATES:
        return Finding(f"featureGates.{gate}", state, CARRIED, "")
    return Finding(f"featureGates.{gate}", state, NO_COUNTERPART, "no such gate here")


def _judge_localhost(value: Any, mode: str) -> Finding:
    field = "iptables.localhostNodePorts"
    if mode != "iptables":
        return Finding(field, value, NOT_NEEDED, f"mode {mode} serves none on loopback")
    if not value:
        return Finding(field, value, NOT_NEEDED, "off, and there are none here either")
    return Finding(field, value, NO_COUNTERPART, _localhost_note())


def _default_localhost(flat: Mapping[str, Any], mode: str, addresses: list[str]) -> list[Finding]:
    """Tell what mode iptables did by default: it served NodePorts on 127.0.0.1 wherever all addresses accept them."""
    if mode != "iptables" or flat.get("iptables.localhostNodePorts") is not None:
        return []
    if addresses != ["all"] and not any(text.strip().endswith("/0") and ":" not in text for text in addresses):
        return []
    return [Finding("iptables.localhostNodePorts", None, DIFFERS, f"its default was true. {_localhost_note()}")]


def _localhost_note() -> str:
    return f"NodePorts on loopback need the gate {LOCALHOST_GATE} and a loopback entry in nodePortAddresses"


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """Return the network of a CIDR block; None for a keyword. Raises ValueError for what is neither."""
    if text in _KEYWORDS:
        return None
    try:
        if "/" in text:
            return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        pass
    raise ValueError(f"nodePortAddresses has {text!r}; kube-proxy takes CIDR blocks such as 192.0.2.0/24 here")


def _node_port_addresses(
    flat: Mapping[str, Any], mode: str, gates: Mapping[str, Any]
) -> tuple[list[str], list[Finding]]:
    wanted = list(flat.get("nodePortAddresses") or ())
    if not wanted:
        return (["primary"] if mode == "nftables" else ["all"]), []
    networks = {cidr: _network(cidr) for cidr in wanted}
    if gates.get(LOCALHOST_GATE):
        return wanted, []
    lost = [cidr for cidr, network in networks.items() if network is not None and network.is_loopback]
    findings = [Finding("nodePortAddresses", cidr, NO_COUNTERPART, _localhost_note()) for cidr in lost]
    # A family without an entry is open on all its addresses, so the last one of a family stays: it opens none.
    others = {network.version for cidr, network in networks.items() if network is not None and cidr not in lost}
    return [cidr for cidr in wanted if cidr not in lost or _version(networks[cidr]) not in others], findings


def _version(network: ipaddress.IPv4Network | ipaddress.IPv6Network | None) -> int:
    return network.version if network is not None else 0


def _sysctls(flat: Mapping[str, Any], cores: int) -> dict[str, int]:
    def number(field: str, default: int) -> int:
        value = flat.get(f"conntrack.{field}")
        return default if value is None else int(value)

    def timeout(field: str, default: str) -> int:
        value = flat.get(f"conntrack.{field}")
        return int(duration.seconds(default if value is None else str(value)))

    per_core, floor = number("maxPerCore", 32768), number("min", 131072)
    wanted = {
        "net.netfilter.nf_conntrack_max": max(floor, min(per_core * cores, _CONNTRACK_CEILING)) if per_core else 0,
        "net.netfilter.nf_conntrack_tcp_timeout_established": timeout("tcpEstablishedTimeout", "24h0m0s"),
        "net.netfilter.nf_conntrack_tcp_timeout_close_wait": timeout("tcpCloseWaitTimeout", "1h0m0s"),
        "net.netfilter.nf_conntrack_tcp_be_liberal": int(bool(flat.get("conntrack.tcpBeLiberal"))),
        "net.netfilter.nf_conntrack_udp_timeout": timeout("udpTimeout", "0s"),
        "net.netfilter.nf_conntrack_udp_timeout_stream": timeout("udpStreamTimeout", "0s"),
    }
    return {name: value for name, value in wanted.items() if value}  # 0 leaves the kernel's value


def translate(config: Mapping[str, Any], cores: int) -> Translation:
    """Translate the configuration that is in force on a node with this many cores.

    Raises ValueError that names the field for a value kube-proxy would not have started with.
    """
    flat = _flatten(config)
    field_types.check(flat)
    mode = str(flat.get("mode") or "iptables")
    if mode not in _MODE_SECTION:
        raise ValueError(f"mode is {mode!r}; kube-proxy knows iptables, ipvs and nftables on Linux")
    section = _MODE_SECTION[mode]
    gates = {name: bool(state) for name, state in (flat.get("featureGates") or {}).items() if name in _GATES}
    addresses, findings = _node_port_addresses(flat, mode, gates)
    findings += _default_localhost(flat, mode, addresses)
    hosts = default_hosts(str(flat.get("bindAddress") or ""))
    healthz = listen_address("healthzBindAddress", flat.get("healthzBindAddress"), hosts.healthz, HEALTHZ_PORT)
    metrics = listen_address("metricsBindAddress", flat.get("metricsBindAddress"), hosts.metrics, METRICS_PORT)
    carried: dict[str, Any] = {
        "detectLocalMode": flat.get("detectLocalMode") or "ClusterCIDR",
        "clusterCIDR": flat.get("clusterCIDR") or "",
        "nodePortAddresses": addresses,
        "nftables": {
            "masqueradeAll": bool(flat.get(f"{section}.masqueradeAll")),
            "masqueradeBit": _or_default(flat.get(f"{section}.masqueradeBit"), 14),
        },
    }
    detect_local = {
        name: flat[f"detectLocal.{name}"]
        for name in ("bridgeInterface", "interfaceNamePrefix")
        if flat.get(f"detectLocal.{name}")
    }
    optional: tuple[tuple[str, Any], ...] = (
        ("detectLocal", detect_local),
        ("hostnameOverride", flat.get("hostnameOverride")),
        ("featureGates", gates),
        # Where they are kproxyd's own defaults they need not be said.
        ("healthzBindAddress", healthz if healthz != _OWN_HEALTHZ else ""),
        ("metricsBindAddress", metrics if metrics != _OWN_METRICS else ""),
    )
    carried.update({name: value for name, value in optional if value})
    if flat.get("bindAddress") not in (None, "", "0.0.0.0", "::"):
        carried["bindAddress"] = flat["bindAddress"]
    for field, value in flat.items():
        findings.extend(_judge(field, value, mode))
    return Translation(
        carried,
        _sysctls(flat, cores),
        healthz,
        metrics,
        tuple(findings),
    )


def unread(flags: Flags, has_document: bool) -> tuple[Finding, ...]:
    """Return what of a command line could not be taken into account; has_document: the configuration file was read."""
    findings = [Finding(flag, "", UNKNOWN, "not a flag of kube-proxy that is known here") for flag in flags.unknown]
    if flags.has_config_file and not has_document:
        note = "no ConfigMap holds this file, so its settings are not known; give them as takeover_config"
        findings.append(Finding("--config", flags.config_file, UNKNOWN, note))
    return tuple(findings)


def _or_default(value: Any, default: Any) -> Any:
    return default if value is None else value
