# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell where pods cannot be told from other clients, which kube-proxy's users learn from connections that hang.

Without detection nobody is masqueraded on cluster IPs, so clients from outside the pod network get no answer, and pods
are outsiders to Local policies (cmd/kube-proxy/app/server_linux.go getLocalDetectors only warns).
"""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import CLUSTER_CIDR
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable

_MEANING = "nothing is masqueraded on cluster IPs, and Local policies take pods for outsiders"


def undetected(table: ServiceTable) -> list[str]:
    """Return one sentence for every family that has frontends and no way to recognise pods."""
    used = {key.family for key in table.frontends}
    if table.config.detect_local_mode == CLUSTER_CIDR:
        missing = "clusterCIDR has no range of IPv%d: set it to the pods' ranges of the whole cluster"
    else:
        missing = (
            "the Node has no podCIDR of IPv%d: let the controller manager allocate them (--allocate-node-cidrs), or "
            "set podCIDRs"
        )
    return [
        f"pods of IPv{family} cannot be told from other clients, so {_MEANING}; {missing % family}"
        for family in sorted(used)
        if not table.rules[family].pods.works
    ]
