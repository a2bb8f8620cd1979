#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: safeguard
short_description: Arm a timer that gives a node back to kube-proxy unless it is disarmed
version_added: 1.0.0
description:
  - V(armed) saves kube-proxy's objects of this node in a script that puts them back, and starts a timer that runs it.
    When the controller, ssh or a proof is lost, nobody disarms the timer, and the node returns to the saved state.
  - V(disarmed) stops the timer. The script stays for M(kproxy.dataplane.safeguard) with V(fired).
  - V(fired) runs the script now.
  - A node without an object of kube-proxy has nothing to go back to, and is not armed.
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._residue
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: partial
    details:
      - V(armed) starts the time anew each time, and V(fired) runs each time.
author:
  - kproxy.dataplane contributors (@kproxy)
options:
  state:
    description:
      - What to do.
    type: str
    choices: [armed, disarmed, fired]
    required: true
  seconds:
    description:
      - Time until the script runs.
    type: int
    default: 300
  node_name:
    description:
      - Name of the Node object. With it the script also removes the label that keeps kube-proxy off the node, as
        kubelet.
    type: str
    default: ""
  kubelet_kubeconfig:
    description:
      - kubelet's kubeconfig on the node.
    type: path
    default: /etc/kubernetes/kubelet.conf
  folder:
    description:
      - Where the script is kept.
    type: path
    default: /var/lib/kproxy/safeguard
  restore:
    version_added: 1.1.0
    description:
      - Whether the script puts kube-proxy's objects back. Without that it ends our part alone, on a node whose
        kube-proxy goes on running; such a node is armed whatever it holds of kube-proxy.
    type: bool
    default: true
  units:
    description:
      - Units that the script stops and disables first.
    type: list
    elements: str
    default: [kproxyd.service]
notes:
  - The timer does not outlive a reboot; neither do kube-proxy's objects.
"""

EXAMPLES = r"""
- name: Be back in five minutes unless all goes well
  kproxy.dataplane.safeguard:
    state: armed
    seconds: 300
    node_name: "{{ inventory_hostname }}"

- name: End a canary in five minutes unless all goes well
  kproxy.dataplane.safeguard:
    state: armed
    seconds: 300
    restore: false

- name: All went well
  kproxy.dataplane.safeguard:
    state: disarmed
"""

RETURN = r"""
armed:
  description: Whether the timer runs, or would run in check mode.
  returned: success
  type: bool
ran:
  description: >-
    Whether the script has run since it was written, by its timer or by hand. A change that is disarmed after it ran was
    undone before it came to its end.
  returned: success
  type: bool
  version_added: 1.1.0
script:
  description: Path of the script; empty when there is none.
  returned: success
  type: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import overridden_name
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import (
    ipset_state,
    iptables_state,
    ipvs_state,
    residue_state,
    tool,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.errors import KernelError
from ansible_collections.kproxy.dataplane.plugins.module_utils._residue import (
    ledger,
    ownership,
    removal,
    service_ports,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._takeover import cluster, undo

UNIT = "kproxy-safeguard"


def timer_runs() -> bool:
    """Say whether the timer is waiting."""
    try:
        tool.run(["systemctl", "is-active", "--quiet", UNIT + ".timer"])
    except tool.ToolError:
        return False
    return True


def stop_timer() -> None:
    """Stop the timer; the script it may be running goes on."""
    tool.run(["systemctl", "stop", UNIT + ".timer"])


def build_script(module: AnsibleModule) -> str:
    """Return the script for the node as it is now, empty when it has to restore and there is nothing of kube-proxy."""
    if not module.params["restore"]:
        return undo.script(undo.NOTHING_SAVED, module.params["units"], "", "", "")
    capture = residue_state.capture()
    book = ledger.attribute(capture, service_ports.parse_all(module.params["node_ports"]))
    plan = removal.plan_removal(capture, book, {ownership.KUBE_PROXY})
    if plan.empty:
        return ""
    saved = undo.Saved(
        capture,
        plan,
        {(item.backend, item.family): item.restore for item in iptables_state.tools()},
        ipset_state.save(),
        ipvs_state.save(),
        residue_state.nft_dump(plan),
    )
    return undo.script(
        saved,
        module.params["units"],
        overridden_name(module.params["node_name"]),
        module.params["kubelet_kubeconfig"],
        cluster.EXCLUSION_LABEL,
    )


def write_script(path: str, text: str) -> None:
    """Write the script for root alone; it appears whole or not at all, and as one that has not run."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    if os.path.exists(path + undo.RAN):
        os.unlink(path + undo.RAN)
    with open(path + ".new", "w", encoding="utf-8", errors="surrogateescape") as stream:
        os.fchmod(stream.fileno(), 0o700)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(path + ".new", path)


def arm(module: AnsibleModule, path: str) -> bool:
    """Arm, or give an armed timer its whole time again. Return whether the timer runs.

    The script of an armed timer is kept: it holds the state before the takeover, the node may be half-way by now. A
    timer whose script has gone is no way back.
    """
    running = timer_runs()
    if not (running and os.path.exists(path)):
        text = build_script(module)
        if not text:
            if running and not module.check_mode:
                stop_timer()
            return False
        if not module.check_mode:
            write_script(path, text)
    if not module.check_mode:
        if running:
            stop_timer()
        seconds = module.params["seconds"]
        command = ["systemd-run", "--quiet", "--unit", UNIT, "--on-active", f"{seconds}s"]
        tool.run([*command, "--timer-property", "AccuracySec=1s", "/bin/sh", path])
    return True


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["armed", "disarmed", "fired"], "required": True},
            "seconds": {"type": "int", "default": 300},
            "node_name": {"type": "str", "default": ""},
            "kubelet_kubeconfig": {"type": "path", "default": "/etc/kubernetes/kubelet.conf"},
            "node_ports": {"type": "list", "elements": "str", "default": []},
            "folder": {"type": "path", "default": "/var/lib/kproxy/safeguard"},
            "restore": {"type": "bool", "default": True},
            "units": {"type": "list", "elements": "str", "default": ["kproxyd.service"]},
        },
        supports_check_mode=True,
    )
    state = module.params["state"]
    if state == "armed" and module.params["seconds"] < 1:
        module.fail_json(
            msg=f"seconds is {module.params['seconds']}, so the way back would run at once, in the middle of what it "
            "guards; give the time that the whole change may take (takeover_safeguard_seconds)"
        )
    path = os.path.join(module.params["folder"], "undo.sh")
    armed = False
    try:
        if state == "armed":
            armed = changed = arm(module, path)
        elif state == "disarmed":
            changed = timer_runs()
            if changed and not module.check_mode:
                stop_timer()
        else:
            changed = os.path.exists(path)
            if changed and not module.check_mode:
                if timer_runs():
                    stop_timer()
                tool.run(["/bin/sh", path])
    except (ValueError, RuntimeError, OSError, KernelError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=changed,
        armed=armed,
        ran=os.path.exists(path + undo.RAN),
        script=path if os.path.exists(path) else "",
    )


if __name__ == "__main__":
    main()
