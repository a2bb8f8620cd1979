# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The facts of one node in the form the checks read, and the options the operator set."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.base_chains import BaseChain, from_facts
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.port_ranges import PortRange, parse_range

Version = tuple[int, ...]

_VERSION = re.compile(r"(\d+(?:\.\d+)*)")


def parse_version(text: str) -> Version:
    """Return the leading numbers of a kernel release or program version.

    Raises:
        ValueError: the text holds no number.
    """
    found = _VERSION.search(text)
    if not found:
        raise ValueError(f"{text!r} is not a version")
    return tuple(int(part) for part in found[1].split("."))


@dataclass(frozen=True)
class NodeFacts:
    """What is known about a node. ``None`` means not known, which is never the same as absent."""

    kernel: str
    nft: str | None
    cores: int = 1
    cap_net_admin: bool = True
    features: Mapping[str, bool] = field(default_factory=dict)
    sysctls: Mapping[str, str] = field(default_factory=dict)
    sysctls_read_only: frozenset[str] = frozenset()
    sysctl_writable: bool = True
    pods_on_bridge: str = ""
    br_netfilter: bool | None = None
    base_chains: tuple[BaseChain, ...] = ()
    containers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    guest_runtimes: tuple[str, ...] = ()
    ra_devices: tuple[str, ...] = ()

    def writable(self, name: str) -> bool:
        """Whether a sysctl can be set on this node."""
        return self.sysctl_writable and name not in self.sysctls_read_only

    @classmethod
    def from_mapping(cls, facts: Mapping[str, Any]) -> NodeFacts:
        """Build from the ``kproxy_node`` fact that the module ``node_facts`` returns.

        Raises:
            ValueError: the kernel release is missing; nothing can be decided then.
        """
        if not facts.get("kernel"):
            raise ValueError("the facts name no kernel release; gather them with kproxy.dataplane.node_facts")
        return cls(
            kernel=str(facts["kernel"]),
            nft=str(facts["nft"]) if facts.get("nft") not in (None, "", "absent") else None,
            cores=int(facts.get("cores") or 1),
            cap_net_admin=bool(facts.get("cap_net_admin", True)),
            features=dict(facts.get("features") or {}),
            sysctls={str(name): str(value) for name, value in (facts.get("sysctls") or {}).items()},
            sysctls_read_only=frozenset(facts.get("sysctls_read_only") or ()),
            sysctl_writable=bool(facts.get("sysctl_writable", True)),
            pods_on_bridge=str(facts.get("pods_on_bridge") or ""),
            br_netfilter=facts.get("br_netfilter"),
            base_chains=tuple(from_facts(facts.get("base_chains") or ())),
            containers=dict(facts.get("containers") or {}),
            guest_runtimes=tuple(facts.get("guest_runtimes") or ()),
            ra_devices=tuple(facts.get("ra_devices") or ()),
        )


@dataclass(frozen=True)
class Options:
    """What the operator asked for."""

    backend: str = "nftables"
    node_ports: PortRange = PortRange(30000, 32767)
    conntrack_min: int = 131072
    conntrack_per_core: int = 32768
    tcp_be_liberal: bool = False
    families: tuple[int, ...] = (4, 6)
    install_packages: bool = True
    host_namespace_only: bool = False
    variables: tuple[str, ...] = ()

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Options:
        """Build from role variables; what is left out keeps its default.

        Raises:
            ValueError: a value is none of what the option allows.
        """
        default = cls()
        backend = str(options.get("backend", default.backend))
        if backend not in ("nftables", "ebpf"):
            raise ValueError(f"backend is {backend!r}, choose nftables or ebpf")
        return cls(
            backend=backend,
            node_ports=parse_range(str(options["node_ports"])) if "node_ports" in options else default.node_ports,
            conntrack_min=int(options.get("conntrack_min", default.conntrack_min)),
            conntrack_per_core=int(options.get("conntrack_per_core", default.conntrack_per_core)),
            tcp_be_liberal=bool(options.get("tcp_be_liberal", default.tcp_be_liberal)),
            families=tuple(int(family) for family in options.get("families", default.families)),
            install_packages=bool(options.get("install_packages", default.install_packages)),
            host_namespace_only=bool(options.get("host_namespace_only", default.host_namespace_only)),
            variables=tuple(map(str, options.get("variables", default.variables))),
        )
