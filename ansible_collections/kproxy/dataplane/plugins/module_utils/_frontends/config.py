# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings that decide what Services mean on this node; names follow KubeProxyConfiguration."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.canary import (
    Canary,
    CanaryError,
    parse_canary,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    AddressError,
    Prefix,
    family_of,
    is_loopback,
    parse_address,
    parse_prefix,
)

CLUSTER_CIDR = "ClusterCIDR"
NODE_CIDR = "NodeCIDR"
BRIDGE_INTERFACE = "BridgeInterface"
INTERFACE_NAME_PREFIX = "InterfaceNamePrefix"
DETECT_LOCAL_MODES = (CLUSTER_CIDR, NODE_CIDR, BRIDGE_INTERFACE, INTERFACE_NAME_PREFIX)

PRIMARY = "primary"
LOCALHOST = "localhost"
ALL = "all"
LOCALHOST_NODE_PORTS_GATE = "KubeProxyNFTablesLocalhostNodePorts"
EXTERNAL_IPS_GATE = "AllowServiceExternalIPs"

_MAX_INTERFACE_NAME = 15
_LOOPBACK = (Prefix(b"\x7f\x00\x00\x00", 8), Prefix(b"\x00" * 15 + b"\x01", 128))


class ConfigError(ValueError):
    """A setting cannot be used; the message names it and says what would do."""


@dataclass(frozen=True)
class ProxyConfig:
    """Settings of one node's proxy. Read the fields as those of KubeProxyConfiguration of the same name.

    node_name tells local endpoints by exact comparison with nodeName. families: the address families to program.
    node_ips: addresses to use as primary while the API has not told the Node's own.
    canary: the Services that are ours while kube-proxy serves the others; None for all.
    """

    node_name: str
    families: tuple[int, ...] = (4, 6)
    detect_local_mode: str = CLUSTER_CIDR
    cluster_cidrs: tuple[Prefix, ...] = ()
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    node_port_addresses: tuple[str, ...] = (PRIMARY,)
    masquerade_all: bool = False
    masquerade_bit: int = 14
    bind_address: bytes = b""
    node_ips: tuple[bytes, ...] = ()
    zone: str = ""
    pod_cidrs: tuple[Prefix, ...] = ()
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    canary: Canary | None = None

    @property
    def masquerade_mark(self) -> int:
        """The packet mark that asks for masquerading."""
        return 1 << self.masquerade_bit

    @property
    def localhost_gate(self) -> bool:
        """Loopback NodePorts are ours to serve or refuse (KEP-6032)."""
        return bool(self.feature_gates.get(LOCALHOST_NODE_PORTS_GATE, False))

    @property
    def serves_external_ips(self) -> bool:
        """External IPs of Services are served (KEP-5707), as they are by default."""
        return bool(self.feature_gates.get(EXTERNAL_IPS_GATE, True))

    def serves_localhost(self, family: int) -> bool:
        """Loopback NodePorts of a family are opted in: `localhost`, or a CIDR that lies within loopback."""
        if not self.localhost_gate:
            return False
        if LOCALHOST in self.node_port_addresses:
            return True
        loopback = _LOOPBACK[0] if family == 4 else _LOOPBACK[1]
        return any(
            loopback.contains(prefix.network) and prefix.length >= loopback.length
            for prefix in self._node_port_prefixes()
        )

    def node_port_ranges(self, family: int, node_addresses: tuple[bytes, ...]) -> tuple[Prefix, ...] | None:
        """Return the ranges in which local addresses of a family accept NodePorts, or None for all of them.

        Loopback addresses never do. node_addresses: the Node's primary ones, at most one per family. A family with
        no entry of its own is open on all its addresses (pkg/proxy/util/nodeport_addresses.go).
        """
        if ALL in self.node_port_addresses:
            return None
        prefixes = [prefix for prefix in self._node_port_prefixes() if prefix.family == family]
        if PRIMARY in self.node_port_addresses:
            prefixes += [
                Prefix(ip, len(ip) * 8)
                for ip in self.primary_addresses(node_addresses)
                # A loopback bindAddress is no place for NodePorts (cmd/kube-proxy/app/server.go).
                if family_of(ip) == family and not is_loopback(ip)
            ]
        if not prefixes and LOCALHOST in self.node_port_addresses and self.localhost_gate:
            return ()
        if not prefixes or any(prefix.length == 0 for prefix in prefixes):
            return None
        return tuple(sorted(set(prefixes)))

    def primary_addresses(self, node_addresses: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the node's primary addresses; bindAddress replaces that of its family."""
        chosen = node_addresses or self.node_ips
        if not self.bind_address or not any(self.bind_address):
            return chosen
        others = [ip for ip in chosen if len(ip) != len(self.bind_address)]
        return (self.bind_address, *others)

    def _node_port_prefixes(self) -> list[Prefix]:
        return [parse_prefix(text) for text in self.node_port_addresses if "/" in text]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ProxyConfig:
        """Return the settings of a mapping with KubeProxyConfiguration's names. Raises ConfigError.

        Keys: nodeName (or hostnameOverride), ipFamilies, detectLocalMode, clusterCIDR (comma-separated or a list),
        detectLocal.{bridgeInterface,interfaceNamePrefix}, nodePortAddresses, masqueradeAll, masqueradeBit
        (also under nftables), bindAddress, nodeIPs, zone, podCIDRs, featureGates, and our own canary. Keys that only
        kproxyd reads are passed over, unknown ones are refused.
        """
        return _read(values)


_KEYS = {
    "apiVersion", "kind", "mode",
    "nodeName", "hostnameOverride", "ipFamilies", "detectLocalMode", "clusterCIDR", "detectLocal",
    "nodePortAddresses", "masqueradeAll", "masqueradeBit", "nftables", "bindAddress", "nodeIPs", "zone", "podCIDRs",
    "featureGates", "canary",
}  # fmt: skip
# They say where kproxyd listens and decide about no packet; one set of settings goes to everybody on a node.
_KPROXYD_KEYS = {"healthzBindAddress", "metricsBindAddress", "bindAddressHardFail"}


def _read(values: Mapping[str, Any]) -> ProxyConfig:
    known = _KEYS | _KPROXYD_KEYS
    unknown = sorted(map(str, set(values) - known))
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        advice = "did you mean %s?" % near[0] if near else "known are %s" % ", ".join(sorted(known))
        raise ConfigError("unknown setting %s; %s" % (", ".join(unknown), advice))
    node_name = str(values.get("nodeName") or "") or overridden_name(values.get("hostnameOverride"))
    if not node_name:
        raise ConfigError("nodeName is missing: set it to the name that this node's Node object has")
    nftables = _section(values, "nftables", ("masqueradeAll", "masqueradeBit", "syncPeriod", "minSyncPeriod"))
    detect_local = _section(values, "detectLocal", ("bridgeInterface", "interfaceNamePrefix"))
    mode = str(values.get("detectLocalMode") or CLUSTER_CIDR)
    if mode not in DETECT_LOCAL_MODES:
        raise ConfigError("detectLocalMode is %r; it must be one of %s" % (mode, ", ".join(DETECT_LOCAL_MODES)))
    bit = values.get("masqueradeBit", nftables.get("masqueradeBit", 14))
    if not isinstance(bit, int) or isinstance(bit, bool) or not 0 <= bit <= 31:
        raise ConfigError("masqueradeBit must be a number from 0 to 31, not %r" % (bit,))
    bind_address = str(values.get("bindAddress") or "")
    gates = values.get("featureGates") or {}
    if not isinstance(gates, Mapping):
        raise ConfigError("featureGates must be a mapping of names to true or false")
    node_port_addresses = _node_port_addresses(values.get("nodePortAddresses"))
    if LOCALHOST in node_port_addresses and not gates.get(LOCALHOST_NODE_PORTS_GATE):
        # Alone, or alone in a family, it would mean nothing, and nothing means all addresses.
        raise ConfigError(
            "nodePortAddresses: %s needs featureGates: {%s: true}" % (LOCALHOST, LOCALHOST_NODE_PORTS_GATE)
        )
    try:
        canary = parse_canary(values.get("canary"))
    except CanaryError as error:
        raise ConfigError(str(error)) from None
    return ProxyConfig(
        node_name=node_name,
        families=_families(values.get("ipFamilies")),
        detect_local_mode=mode,
        cluster_cidrs=_prefixes(values.get("clusterCIDR"), "clusterCIDR"),
        bridge_interface=_interface(
            detect_local.get("bridgeInterface"), "detectLocal.bridgeInterface", mode == BRIDGE_INTERFACE
        ),
        interface_name_prefix=_interface(
            detect_local.get("interfaceNamePrefix"), "detectLocal.interfaceNamePrefix", mode == INTERFACE_NAME_PREFIX
        ),
        node_port_addresses=node_port_addresses,
        masquerade_all=_boolean(values.get("masqueradeAll", nftables.get("masqueradeAll")), "masqueradeAll"),
        masquerade_bit=bit,
        bind_address=_address(bind_address, "bindAddress") if bind_address else b"",
        node_ips=tuple(_address(str(text), "nodeIPs") for text in _texts(values.get("nodeIPs"), "nodeIPs")),
        zone=str(values.get("zone") or ""),
        pod_cidrs=_prefixes(values.get("podCIDRs"), "podCIDRs"),
        feature_gates={str(name): _boolean(on, "featureGates.%s" % name) for name, on in gates.items()},
        canary=canary,
    )


def overridden_name(value: Any) -> str:
    """Return the node name that a hostnameOverride means: without blanks around it, in small letters.

    Names of Nodes never have capitals. Source: k8s.io/component-helpers nodeutil.GetHostname.
    """
    return str(value or "").strip().lower()


def _families(value: Any) -> tuple[int, ...]:
    names = {"IPv4": 4, "IPv6": 6}
    chosen = value or ["IPv4", "IPv6"]
    if not isinstance(chosen, (list, tuple)) or not set(chosen) <= set(names):
        raise ConfigError("ipFamilies must be a list of IPv4 and IPv6, not %r" % (value,))
    return tuple(sorted(names[name] for name in set(chosen)))


def _section(values: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    section = values.get(name)
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError("%s must be a mapping, not %r" % (name, section))
    for key in section:
        if key not in known:
            raise ConfigError("unknown setting %s.%s; known are %s" % (name, key, ", ".join(known)))
    return section


def _boolean(value: Any, name: str) -> bool:
    """Return a switch. A text is refused: "false" in quotes, as an INI inventory makes it, would be true."""
    if value is not None and not isinstance(value, bool):
        raise ConfigError("%s must be true or false without quotes, not %r" % (name, value))
    return bool(value)


def _texts(value: Any, name: str) -> list[Any]:
    """Return the items of a list, or of a text with commas between them."""
    if isinstance(value, str):
        return value.split(",")
    if value is not None and not isinstance(value, (list, tuple)):
        raise ConfigError("%s must be a list, not %r" % (name, value))
    return list(value or ())


def _prefixes(value: Any, name: str) -> tuple[Prefix, ...]:
    texts = _texts(value, name)
    try:
        return tuple(parse_prefix(str(text)) for text in texts if str(text).strip())
    except AddressError as error:
        raise ConfigError("%s: %s" % (name, error)) from None


def _as_block(text: str) -> str:
    """Return advice for a single address in the place of a block."""
    try:
        return "; a single address is %s/%d" % (text, len(parse_address(text)) * 8)
    except AddressError:
        return ""


def _address(text: str, name: str) -> bytes:
    try:
        return parse_address(text.strip())
    except AddressError as error:
        raise ConfigError("%s: %s" % (name, error)) from None


def _interface(value: Any, name: str, needed: bool) -> str:
    text = str(value or "")
    if needed and not text:
        raise ConfigError("%s is missing: this detectLocalMode needs it" % name)
    longest = _MAX_INTERFACE_NAME - (name == "detectLocal.interfaceNamePrefix")  # nft needs room for its asterisk
    if len(text) > longest or any(char.isspace() or char in '/"*\\' for char in text):
        raise ConfigError("%s: %r is no interface name" % (name, text))
    return text


def _node_port_addresses(value: Any) -> tuple[str, ...]:
    if value is None or value == []:
        return (PRIMARY,)
    if not isinstance(value, (list, tuple)):
        raise ConfigError("nodePortAddresses must be a list, not %r" % (value,))
    chosen: list[str] = []
    for item in value:
        text = str(item).strip()
        if text not in (PRIMARY, LOCALHOST, ALL):
            try:
                text = str(parse_prefix(text))
            except AddressError:
                raise ConfigError(
                    "nodePortAddresses: %r is neither a CIDR block nor one of %s, %s, %s%s"
                    % (item, PRIMARY, LOCALHOST, ALL, _as_block(text))
                ) from None
        chosen.append(text)
    return tuple(chosen)
