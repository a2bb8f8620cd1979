#!/usr/bin/python
# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_settings
short_description: Set kernel settings for the dataplane and put the old ones back
version_added: 1.0.0
description:
  - Sets sysctls and loads kernel modules, now and at every boot, and keeps the values from before.
  - Settings are added to those of earlier runs; O(state=absent) puts all of them back at once.
  - Which settings a node needs is decided by the role C(kproxy.dataplane.preflight).
author:
  - kproxy.dataplane contributors (@kproxy)
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.actiongroup_kproxy
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) gives the node the settings.
      - V(absent) puts back the values from before, except those that somebody has changed since. Modules stay loaded
        until the next boot, because others may use them by now.
    type: str
    choices: [present, absent]
    default: present
  sysctls:
    description:
      - Values by name, for example V({"net.ipv4.ip_forward":"1"}).
    type: dict
    default: {}
  modules:
    description:
      - Kernel modules to load, now and at every boot.
      - The module that brings one of O(sysctls) is added where known (C(nf_conntrack), C(br_netfilter)), because a
        boot sets sysctls before anything else would load it.
    type: list
    elements: str
    default: []
notes:
  - The files are C(/etc/sysctl.d/60-kproxy.conf), C(/etc/modules-load.d/kproxy.conf) and
    C(/var/lib/kproxy/settings.json).
"""

EXAMPLES = r"""
- name: Let the node forward
  kproxy.dataplane.node_settings:
    sysctls:
      net.ipv4.ip_forward: "1"

- name: Put back what was there
  kproxy.dataplane.node_settings:
    state: absent
"""

RETURN = r"""
sysctls:
  description: The values that were written, or would be in check mode, by name.
  returned: success
  type: dict
  sample: {"net.ipv4.ip_forward": "1"}
modules:
  description: The kernel modules that were loaded, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [br_netfilter]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel import tool
from ansible_collections.kproxy.dataplane.plugins.module_utils._node_settings import plan, system


def run(module: AnsibleModule) -> dict[str, Any]:
    """Read, plan, apply unless in check mode, report."""
    present = module.params["state"] == "present"
    ledger = plan.Ledger.load(system.read_text(system.LEDGER_FILE))
    sysctls: dict[str, Any] = module.params["sysctls"] if present else {}
    modules: list[str] = module.params["modules"] if present else []
    if system.has_modules():
        modules = sorted({*modules, *plan.modules_behind(sysctls)})
    current = system.read_sysctls([*sysctls, *ledger.before])
    if present:
        change = plan.apply(ledger, current, system.loaded_modules(modules), sysctls, modules)
        wrong = plan.mistakes(sysctls, current, change.load)
        if wrong:
            raise system.SettingError("; ".join(wrong))
    else:
        change = plan.restore(ledger, current)
    found = {path: system.read_text(path) for path in boot_files(change.ledger)}
    outdated = {path: text for path, text in boot_files(change.ledger).items() if found[path] != text}
    changed = change.changed or bool(outdated)
    if changed and not module.check_mode:
        apply(ledger, change)
    return {
        "changed": changed,
        "sysctls": dict(change.write),
        "modules": list(change.load),
        "diff": [
            {
                "before": {name: current.get(name) for name in change.write},
                "after": dict(change.write),
                "before_header": "sysctls",
                "after_header": "sysctls",
            },
            *(
                {"before": found[path], "after": text, "before_header": path, "after_header": path}
                for path, text in outdated.items()
            ),
        ],
    }


def boot_files(ledger: plan.Ledger) -> dict[str, str]:
    """Return what the files that a boot reads should say, empty where there should be none."""
    return {system.MODULES_FILE: plan.modules_file(ledger), system.SYSCTL_FILE: plan.sysctl_file(ledger)}


def apply(earlier: plan.Ledger, change: plan.Plan) -> None:
    """Record first, so that what is set can be put back even if a later step fails.

    What the kernel refuses costs only itself: the rest is set, now and at every boot.
    """
    if change.ledger != plan.Ledger():
        system.write_text(system.LEDGER_FILE, change.ledger.dump())
    refused: dict[str, str] = {}
    for name in change.load:
        try:
            tool.run([tool.find("modprobe") or "modprobe", "--", name])
        except tool.ToolError as error:
            refused[name] = f"kernel module {name} cannot be loaded: {error.stderr.strip()}"
    for name, value in change.write.items():
        try:
            system.write_sysctl(name, value)
        except system.SettingError as error:
            refused[name] = str(error)
    ledger = plan.without(change.ledger, earlier, refused)
    for path, text in boot_files(ledger).items():
        system.write_text(path, text)
    system.write_text(system.LEDGER_FILE, ledger.dump() if ledger != plan.Ledger() else "")
    if refused:
        raise system.SettingError("; ".join(refused.values()))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "sysctls": {"type": "dict", "default": {}},
            "modules": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except (system.SettingError, plan.LedgerError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
