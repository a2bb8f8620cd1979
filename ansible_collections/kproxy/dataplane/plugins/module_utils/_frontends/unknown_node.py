# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Tell a node name that the cluster does not know: with it no endpoint is this node's, and Local policies drop all.

Names are compared exactly, so a host name with a domain is another one than without (weaveworks/weave#3568).
"""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable


def unknown_node(table: ServiceTable, has_nodes: bool) -> list[str]:
    """Return one sentence if the node's name seems to be wrong; has_nodes: the source would hold this Node's object."""
    if table.store.node is not None:
        return []
    name = table.config.node_name
    near = sorted(other for other in table.store.endpoint_nodes() if _host(other) == _host(name) and other != name)
    if not has_nodes and not near:
        return []
    advice = f"did you mean {near[0]}?" if near else "kubectl get nodes lists those that are"
    return [
        f"there is no Node {name}, so no endpoint counts as this node's: set the name that this machine has in the "
        f"cluster (kproxy_node_name); {advice}"
    ]


def _host(name: str) -> str:
    return name.lower().partition(".")[0]
