#!/usr/bin/python

# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sidecar
short_description: Run kproxyd, which keeps a node's kernel in step with the API server
version_added: 1.0.0
description:
  - Delivers the sidecar as one file, configures it, runs it as a systemd service and waits until it is in step with
    its source.
  - The file is built on the controller from this collection and the pinned libraries it needs; the node fetches
    nothing and needs
    only C(python3) from 3.9 on.
  - A running sidecar is restarted when its file, unit or configuration changes. It takes over what the kernel holds,
    so that no
    connection is lost.
  - When a node moves from eBPF to nftables, the programs take no new connection and are removed once the last one that
    they translate has ended; the transient unit C(kproxy-retirement.service) sees to it.
  - O(state=absent) removes the sidecar. What is programmed stays in the kernel; remove it with
    M(kproxy.dataplane.nftables).
extends_documentation_fragment:
  - kproxy.dataplane._attributes
  - kproxy.dataplane._attributes.actiongroup_kproxy
  - kproxy.dataplane._kproxy.node
author:
  - kproxy.dataplane contributors (@kproxy)
attributes:
  check_mode:
    support: full
    details:
      - Never waits in check mode.
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - Whether the sidecar is installed and runs, or is stopped and removed.
      - V(packed) makes the file on the controller and does nothing on the node. Ahead of what changes a node, it lets a
        controller fail that lacks C(shiv) or a way to the libraries. Since 1.1.0.
    type: str
    choices: [present, absent, packed]
    default: present
  backend:
    description:
      - What carries the Services.
    type: str
    choices: [nftables, ebpf]
    default: nftables
  source:
    description:
      - V(api), or V(manifests:DIR) for a folder of manifests on the node, which is watched.
    type: str
    default: api
  kubeconfig:
    description:
      - The kubeconfig on the node. Required for O(source=api).
    type: path
  settings:
    description:
      - Settings of the sidecar itself, for example C(logLevel) or C(auditPeriod).
    type: dict
    default: {}
  wait_seconds:
    description:
      - How long to wait until the sidecar is in step with its source. V(0) does not wait.
    type: int
    default: 60
  wheels:
    description:
      - Folder on the controller with the wheels of the pinned libraries. With it the controller fetches nothing either.
      - Without it, pip gets them once, checked against their pinned hashes.
    type: path
  bundle:
    description:
      - Where the bundle was put on the node. Filled in by the action plugin, only when the node has another one.
    type: path
  bundle_sha256:
    description:
      - Digest of the bundle that the node should have. Filled in by the action plugin.
    type: str
requirements:
  - systemd
  - Python 3.9 or later on the node
seealso:
  - module: kproxy.dataplane.nftables
"""

EXAMPLES = r"""
- name: Keep this node in step with the API server
  kproxy.dataplane.sidecar:
    kubeconfig: /etc/kproxy/kubeconfig
    config:
      clusterCIDR: 10.244.0.0/16

- name: Follow a folder of manifests
  kproxy.dataplane.sidecar:
    source: manifests:/etc/kproxy/manifests
    node_name: gpu-a

- name: Make its file on the controller, before anything changes on the node
  kproxy.dataplane.sidecar:
    state: packed

- name: Stop and remove it
  kproxy.dataplane.sidecar:
    state: absent
"""

RETURN = r"""
status:
  description: What the sidecar says about itself. Empty in check mode, and when nothing was waited for.
  returned: success
  type: dict
  sample:
    version: 1.0.0
    node: gpu-a
    mode: nftables
    inStep: true
    generation: 7
restarted:
  description: Whether the sidecar was started anew, or would be in check mode.
  returned: success
  type: bool
retires_ebpf:
  version_added: 1.1.0
  description:
    - Whether the programs of a node that was served by eBPF were told to finish their connections and go, or would be
      in check mode.
  returned: success
  type: bool
bundle_sha256:
  description: Digest of the bundle on the node afterwards, or on the controller with O(state=packed).
  returned: success
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.kproxy.dataplane.plugins.module_utils._install import files
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.retirement import Retirement
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import Service, ServiceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import unit
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.settings import SettingsError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.module_options import (
    NODE_OPTIONS,
    node_name_of,
    proxy_config,
)


class MissingBundle(Exception):
    """The node has another bundle than it should, and the right one was not delivered."""


def present(module: AnsibleModule, service: Service) -> dict[str, Any]:
    """Read, plan, apply unless in check mode, wait, report."""
    proxy_config(module.params)
    wanted = [
        files.configuration(module.params, node_name_of(module.params)),
        files.unit_file(module.params["backend"], service.systemd_version()),
    ]
    found = {file.path: files.current_text(file.path) for file in wanted}
    outdated = [file for file in wanted if found[file.path] != file.text]
    has = files.digest_of(unit.BUNDLE_PATH)
    needs = module.params["bundle_sha256"] or has
    loose = files.loose(wanted)
    state = service.state()
    # A run that ended between writing and starting anew has left a kproxyd of the files before.
    behind = state.active and not service.runs_since(files.last_written())
    restart = bool(outdated) or has != needs or not state.active or behind
    changed = restart or bool(loose) or not state.enabled or not files.links_right()
    former: float | None = None
    retirement = Retirement(module.run_command, module.params["settings"])
    retires = module.params["backend"] == "nftables" and retirement.due()
    if changed and not module.check_mode:
        if has != needs or not has:
            if not module.params["bundle"]:
                raise MissingBundle("the bundle was not delivered: run this module through its action plugin")
            files.install_bundle(module.params["bundle"])
        files.make_links()
        files.tighten(loose)
        for file in outdated:
            files.write(file)
        if behind or any(file.path == unit.UNIT_PATH for file in outdated):
            service.systemctl("daemon-reload")
        if not state.enabled:
            service.systemctl("enable", unit.UNIT_NAME)
        if restart:
            former = service.started()
            service.restart()
    wait = module.params["wait_seconds"] if not module.check_mode else 0
    status = service.wait_in_step(wait, former) if wait else {}
    if retires and not module.check_mode:
        retirement.start()
    return {
        "changed": changed or retires,
        "restarted": restart,
        "bundle_sha256": needs,
        "retires_ebpf": retires,
        "status": status,
        "diff": [
            *(
                {
                    "before_header": file.path,
                    "after_header": file.path,
                    "before": found[file.path] or "",
                    "after": file.text,
                }
                for file in outdated
            ),
            *(
                {
                    "before_header": rights.path,
                    "after_header": rights.path,
                    "before": f"{rights.before}\n",
                    "after": f"{rights.after}\n",
                }
                for rights in loose
            ),
            *(
                [
                    {
                        "before_header": unit.BUNDLE_PATH,
                        "after_header": unit.BUNDLE_PATH,
                        "before": f"sha256 {has}\n" if has else "",
                        "after": f"sha256 {needs}\n",
                    }
                ]
                if has != needs
                else []
            ),
        ],
    }


def absent(module: AnsibleModule, service: Service) -> dict[str, Any]:
    """Stop and remove the sidecar; what is programmed stays."""
    there = files.present()
    state = service.state()
    retirement = Retirement(module.run_command, module.params["settings"])
    changed = bool(there) or state.active or state.enabled or retirement.active()
    if changed and not module.check_mode:
        if state.active or state.enabled:
            service.systemctl("disable", "--now", unit.UNIT_NAME)
        retirement.stop()
        files.remove()
        service.systemctl("daemon-reload")
    return {
        "changed": changed,
        "restarted": False,
        "retires_ebpf": False,
        "bundle_sha256": "",
        "status": {},
        "diff": {"before": "".join(f"{path}\n" for path in there), "after": ""},
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            **NODE_OPTIONS,
            "state": {"type": "str", "choices": ["present", "absent", "packed"], "default": "present"},
            "backend": {"type": "str", "choices": ["nftables", "ebpf"], "default": "nftables"},
            "source": {"type": "str", "default": "api"},
            "kubeconfig": {"type": "path"},
            "settings": {"type": "dict", "default": {}},
            "wait_seconds": {"type": "int", "default": 60},
            "wheels": {"type": "path"},
            "bundle": {"type": "path"},
            "bundle_sha256": {"type": "str"},
        },
        supports_check_mode=True,
    )
    if module.params["state"] == "packed":
        module.fail_json(msg="state=packed is work of the controller: run this module through its action plugin")
    service = Service(module.run_command)
    try:
        result = present(module, service) if module.params["state"] == "present" else absent(module, service)
    except (SettingsError, ServiceError, MissingBundle, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
