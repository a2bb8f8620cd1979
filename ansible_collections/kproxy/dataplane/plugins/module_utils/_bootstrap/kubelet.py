# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kubelet configuration for a node without kube-proxy."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

API_VERSION = "kubelet.config.k8s.io/v1beta1"


def amend(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a KubeletConfiguration that makes no iptables chains; all else stays as it was.

    With makeIPTablesUtilChains off kubelet makes none of KUBE-IPTABLES-HINT, KUBE-KUBELET-CANARY and KUBE-FIREWALL, so
    a fresh node shows no KUBE- chain at all. KUBE-FIREWALL guards loopback where route_localnet is on; we never turn
    that on.
    """
    result = copy.deepcopy(dict(document))
    result.setdefault("apiVersion", API_VERSION)
    result.setdefault("kind", "KubeletConfiguration")
    result["makeIPTablesUtilChains"] = False
    return result
