#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: residue
short_description: Remove what kube-proxy left on a node, and nothing else
version_added: 1.0.0
description:
  - Removes iptables chains and the jumps to them, ipsets, IPVS virtual servers, C(kube-ipvs0) and the nftables tables
    C(ip kube-proxy) and C(ip6 kube-proxy), of the owners asked for.
  - Looks at both iptables back ends and both families. Each iptables table changes in one transaction.
  - What belongs to anybody else stays byte for byte as it is.
  - Load this collection's tables first. Removing the last NAT rules of a node ends its open translated connections.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._residue
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - kproxy.dataplane contributors (@kproxy)
options:
  state:
    description:
      - V(absent) removes the objects.
    type: str
    choices: [absent]
    default: absent
  owners:
    description:
      - Whose objects to remove, of V(kube-proxy), V(kubelet), V(network-policy-agent) and V(either).
      - V(kubelet) brings its chains back within a minute unless its configuration has C(makeIPTablesUtilChains=false).
    type: list
    elements: str
    default: [kube-proxy]
  forward_drop:
    description:
      - What to do when forwarded service traffic would be dropped by a C(FORWARD) policy of somebody else once
        C(KUBE-FORWARD) is gone. Nobody else's chain is ever edited.
      - V(refuse) fails before anything is changed, V(warn) goes on and warns.
    type: str
    choices: [refuse, warn]
    default: refuse
seealso:
  - module: kproxy.dataplane.residue_info
notes:
  - Fails without a change while a kube-proxy process works on this network namespace. A preview may come before it is
    stopped, so in check mode RV(kube_proxy_running) and the heading of the diff tell of it instead.
"""

EXAMPLES = r"""
- name: See what would go (with --check --diff), or remove it
  kproxy.dataplane.residue:
    state: absent

- name: Remove kubelet's chains too, after setting makeIPTablesUtilChains to false
  kproxy.dataplane.residue:
    owners: [kube-proxy, kubelet, either]
"""

RETURN = r"""
kube_proxy_running:
  description: >-
    Numbers of the kube-proxy processes that work on this network namespace, in check mode. They have to end before
    kube-proxy's objects are removed.
  returned: success
  type: list
  elements: int
  sample: []
removed:
  description: One line for every object that was removed, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: ["chain nft/ip/nat KUBE-SERVICES", "ipset KUBE-CLUSTER-IP", "interface kube-ipvs0"]
kept:
  description: Objects of the given owners that could not go, and what holds them.
  returned: success
  type: list
  elements: str
counts:
  description: How many objects each owner has after the run; in check mode, now.
  returned: success
  type: dict
  sample: {kube-proxy: 0, kubelet: 5}
"""

from collections.abc import Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import processes, residue_state, tool
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import (
    ledger,
    ownership,
    removal,
    service_ports,
)

# A CNI plugin or kubelet may change a rule between our reading and our commit; the commit then fails whole.
_ATTEMPTS = 3


def read(module: AnsibleModule) -> tuple[ledger.Capture, ledger.Ledger, removal.Removal]:
    """Return what is there, whose it is, and what is to go."""
    capture = residue_state.capture()
    book = ledger.attribute(capture, service_ports.parse_all(module.params["node_ports"]))
    return capture, book, removal.plan_removal(capture, book, frozenset(module.params["owners"]))


def refuse_unsafe(
    module: AnsibleModule, capture: ledger.Capture, plan: removal.Removal, running: Sequence[int]
) -> None:
    """Fail while kube-proxy runs, and when forwarding would stop; the latter may be waived."""
    if running and not module.check_mode:
        module.fail_json(
            msg=f"kube-proxy runs on this node (process {listed(running)}) and would write its rules again; exclude the"
            " node from its DaemonSet, or set disable-kube-proxy for k3s, and wait until it is gone"
        )
    for loss in removal.lost_forwarding(capture, plan):
        if module.params["forward_drop"] == "refuse":
            module.fail_json(
                msg=f"{loss}; let that chain accept the pod network, or say forward_drop=warn to go on regardless"
            )
        module.warn(loss)


def listed(numbers: Sequence[int]) -> str:
    """Return the numbers of processes as a sentence has them."""
    return ", ".join(map(str, numbers))


def remove(module: AnsibleModule, plan: removal.Removal) -> ledger.Ledger:
    """Carry the plan out and return what is left; read and plan again when somebody changed a rule meanwhile.

    Fails when objects are there again right after their removal: then something still writes them.
    """
    for attempt in range(_ATTEMPTS):
        try:
            residue_state.execute(plan)
            break
        except tool.ToolError:
            if attempt == _ATTEMPTS - 1:
                raise
            plan = read(module)[2]
    _capture, book, rest = read(module)
    if not rest.empty:
        module.fail_json(msg=f"removed, and back at once: {', '.join(rest.describe())}; some program writes them again")
    return book


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["absent"], "default": "absent"},
            "owners": {"type": "list", "elements": "str", "default": ["kube-proxy"]},
            "node_ports": {"type": "list", "elements": "str", "default": []},
            "forward_drop": {"type": "str", "choices": ["refuse", "warn"], "default": "refuse"},
        },
        supports_check_mode=True,
    )
    ours = ownership.KUBE_PROXY in module.params["owners"]
    running: Sequence[int] = ()
    try:
        capture, book, plan = read(module)
        if not plan.empty:
            running = processes.kube_proxies() if ours else ()
            refuse_unsafe(module, capture, plan, running)
            for warning in plan.warnings:
                module.warn(warning)
            if not module.check_mode:
                book = remove(module, plan)
    except (ValueError, RuntimeError, KernelError) as error:
        module.fail_json(msg=str(error))
    if ours:
        for item in residue_state.saved_rules():
            module.warn(str(item))
    removed = plan.describe()
    result: dict[str, Any] = {
        "changed": not plan.empty,
        "removed": removed,
        "kube_proxy_running": list(running),
        "kept": list(plan.kept),
        "counts": {owner: book.count(owner) for owner in ownership.OWNERS},
    }
    if module._diff:
        result["diff"] = {
            "before_header": "objects of " + ", ".join(module.params["owners"]),
            "after_header": f"after removal, once kube-proxy (process {listed(running)}) is gone"
            if running
            else "after removal",
            "before": "".join(line + "\n" for line in removed),
            "after": "",
        }
    module.exit_json(**result)


if __name__ == "__main__":
    main()
