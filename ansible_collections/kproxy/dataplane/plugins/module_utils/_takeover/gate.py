# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The gate of a takeover: two service proxies on one node undo each other's rules, so one has to be gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import daemonset as daemonsets

# kube-proxy's metrics and health ports. Ours may serve the latter, so the program's name decides, not the port.
PORTS = (10249, 10256)
PROGRAM = "kube-proxy"


class Decision(NamedTuple):
    """`refuse` says that nothing may be changed on the node; `reasons` are for people, strongest first."""

    refuse: bool
    reasons: tuple[str, ...]

    @property
    def reason(self) -> str:
        return self.reasons[0] if self.reasons else ""


def decide(
    node: Mapping[str, Any],
    daemonset_list: Iterable[Mapping[str, Any]] = (),
    listeners: Iterable[tuple[str, int, str]] = (),
    processes: Iterable[int] = (),
    static_pods: Iterable[str] = (),
) -> Decision:
    """Decide for one node from what the API says and what was seen on it.

    `listeners` are (address, port, program); `static_pods` are manifest files of kubelet that name kube-proxy.
    """
    reasons: list[str] = []
    for item in daemonset_list:
        if daemonsets.is_kube_proxy(item) and daemonsets.selects(item, node):
            metadata = item["metadata"]
            name = metadata.get("name", PROGRAM)
            reasons.append(
                f"{name} DaemonSet still selects this node"
                if name == PROGRAM
                else f"DaemonSet {metadata.get('namespace', '')}/{name} runs kube-proxy and still selects this node"
            )
    reasons += [f"kubelet runs kube-proxy from {path}" for path in static_pods]
    reasons += [f"a kube-proxy process runs ({pid})" for pid in processes]
    reasons += [
        f"kube-proxy listens on {address}:{port}"
        for address, port, program in listeners
        if program == PROGRAM and port in PORTS
    ]
    return Decision(bool(reasons), tuple(reasons))


def may_delete_daemonset(verified: Mapping[str, bool], nodes: Iterable[str], asked: bool) -> bool:
    """Say whether the DaemonSet may go: when every node of the cluster has verified, or when asked."""
    return asked or all(verified.get(name, False) for name in nodes)
