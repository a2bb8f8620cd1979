# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packs the sidecar on the controller and delivers it to nodes that have another one, or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.unit import BUNDLE_PATH
from ansible_collections.kproxy.dataplane.plugins.plugin_utils._bundle import Bundle, BundleError, build


class ActionModule(ActionBase):  # type: ignore[misc]
    """Tells the module which bundle the node should have, and puts it there first if the node's is another.

    `state: packed` ends with the bundle on the controller; the node is not asked.
    """

    _requires_connection = True
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Deliver the bundle if it is needed, and run the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        arguments = dict(self._task.args)
        wheels = arguments.pop("wheels", None)
        variables = task_vars or {}
        state = arguments.get("state", "present")
        if state in ("present", "packed"):
            bundle = self._pack(Path(wheels).expanduser() if wheels else None)
            if state == "packed":
                nothing = {"changed": False, "restarted": False, "retires_ebpf": False, "status": {}}
                return {**result, **nothing, "bundle_sha256": bundle.digest}
            arguments["bundle_sha256"] = bundle.digest
            if not self._task.check_mode and self._digest_on_node(variables) != bundle.digest:
                arguments["bundle"] = self._deliver(bundle.path)
        result.update(self._execute_module(module_args=arguments, task_vars=variables))
        return result

    def _pack(self, wheels: Path | None) -> Bundle:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kproxy-dataplane"
        try:
            return build(cache, wheels)
        except BundleError as error:
            raise AnsibleActionFail(str(error)) from error

    def _digest_on_node(self, variables: dict[str, Any]) -> str:
        found = self._execute_module(
            module_name="ansible.legacy.stat",
            module_args={"path": BUNDLE_PATH, "checksum_algorithm": "sha256", "get_mime": False},
            task_vars=variables,
        )
        return str((found.get("stat") or {}).get("checksum", ""))

    def _deliver(self, path: Path) -> str:
        """Copy the bundle into the task's temporary folder on the node; the module puts it in its place."""
        folder = self._connection._shell.tmpdir or self._make_tmp_path()
        target = str(self._connection._shell.join_path(folder, path.name))
        self._transfer_file(str(path), target)
        self._fixup_perms2((folder, target))
        return target
