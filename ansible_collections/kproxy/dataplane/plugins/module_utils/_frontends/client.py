# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Telling clients apart: pods, the node itself, outsiders."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import (
    BRIDGE_INTERFACE,
    CLUSTER_CIDR,
    INTERFACE_NAME_PREFIX,
    ProxyConfig,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import Prefix

POD = "pod"
NODE = "node"
OUTSIDER = "outsider"


class PodDetection(NamedTuple):
    """How pods of one family are recognised: by source range or by the interface they come in by.

    All empty: pods cannot be told from outsiders, and nothing is masqueraded on cluster IPs.
    """

    source_ranges: tuple[Prefix, ...] = ()
    interface: str = ""
    interface_prefix: str = ""

    @property
    def works(self) -> bool:
        return bool(self.source_ranges or self.interface or self.interface_prefix)

    def recognises(self, source: bytes, interface: str) -> bool:
        """Whether a packet is a pod's. interface is empty for packets that this node sends itself."""
        if self.source_ranges:
            return any(prefix.contains(source) for prefix in self.source_ranges)
        if self.interface:
            return interface == self.interface
        return bool(self.interface_prefix) and interface.startswith(self.interface_prefix)


def pod_detection(config: ProxyConfig, family: int, node_pod_cidrs: tuple[Prefix, ...]) -> PodDetection:
    """Return how pods of a family are recognised under the node's local-detect mode.

    Source: cmd/kube-proxy/app/server_linux.go getLocalDetectors.
    """
    if config.detect_local_mode == BRIDGE_INTERFACE:
        return PodDetection(interface=config.bridge_interface)
    if config.detect_local_mode == INTERFACE_NAME_PREFIX:
        return PodDetection(interface_prefix=config.interface_name_prefix)
    ranges = config.cluster_cidrs if config.detect_local_mode == CLUSTER_CIDR else node_pod_cidrs
    return PodDetection(source_ranges=tuple(sorted(prefix for prefix in ranges if prefix.family == family)))
