# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The variables of the inventory. Ansible takes no notice of one that nobody reads: a misspelt one would do nothing."""

from __future__ import annotations

import difflib

from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.findings import BLOCK, OK, WARN, Finding
from ansible_collections.kproxy.dataplane.plugins.module_utils._preflight.node_facts import NodeFacts, Options

#: What roles and playbooks read, and the fact that a look at a node leaves.
KNOWN = frozenset(
    {
        "kproxy_admin_kubeconfig",
        "kproxy_api_ca_cert",
        "kproxy_api_client_cert",
        "kproxy_api_client_key",
        "kproxy_api_servers",
        "kproxy_api_token",
        "kproxy_backend",
        "kproxy_backup",
        "kproxy_canary_namespaces",
        "kproxy_canary_selector",
        "kproxy_canary_services",
        "kproxy_canary_state",
        "kproxy_config",
        "kproxy_ebpf_algorithm",
        "kproxy_ebpf_excluded_devices",
        "kproxy_ebpf_forwarding",
        "kproxy_ebpf_host_namespace_only",
        "kproxy_ebpf_maglev_memory",
        "kproxy_ebpf_maglev_table_size",
        "kproxy_ebpf_protect_node_ports",
        "kproxy_ebpf_xdp",
        "kproxy_ebpf_xdp_devices",
        "kproxy_hosts",
        "kproxy_kubeconfig",
        "kproxy_kubeconfig_src",
        "kproxy_manifests",
        "kproxy_node",
        "kproxy_node_name",
        "kproxy_remove_kube_proxy",
        "kproxy_serial",
        "kproxy_source",
        "kproxy_wheels",
    }
)


def variables(_facts: NodeFacts, options: Options) -> Finding:
    """Refuse what can only be meant for one of ours; warn about the rest, which may be the operator's own."""
    unknown = sorted({name for name in options.variables if name.startswith("kproxy_")} - KNOWN)
    near = {name: difflib.get_close_matches(name, sorted(KNOWN), 1, 0.85) for name in unknown}
    said = [
        "%s is no variable of this collection" % name + ("; did you mean %s?" % near[name][0] if near[name] else "")
        for name in unknown
    ]
    if not unknown:
        return Finding("variables", OK, "every variable that begins with kproxy_ is known")
    return Finding("variables", BLOCK if any(near.values()) else WARN, ", ".join(said))
