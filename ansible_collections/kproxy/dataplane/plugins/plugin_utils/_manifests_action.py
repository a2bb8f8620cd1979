# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: may change at any time. Reads a module's manifests on the controller and hands it their objects."""

from __future__ import annotations

import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import without_others_content
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.errors import SourceError
from ansible_collections.kproxy.dataplane.plugins.module_utils._sources.manifests import read_manifests


class ManifestsAction(ActionBase):  # type: ignore[misc]
    """Runs the module of the same name; ``manifests`` of the controller become ``objects``.

    The node then needs neither the files nor PyYAML. The module itself says what is wrong with single objects.
    """

    _requires_connection = True
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read the manifests, if they are here, and run the module."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        del tmp
        arguments = dict(self._task.args)
        if arguments.get("manifests") and not boolean(arguments.get("remote_src", False), strict=False):
            arguments["objects"] = self._read(str(arguments.pop("manifests")))
        if isinstance(arguments.get("objects"), list):
            # What modules are given gets into the node's journal, and with ANSIBLE_INJECT_INVOCATION into the output.
            arguments["objects"] = [without_others_content(document) for document in arguments["objects"]]
        result.update(
            self._execute_module(module_name=self._task.action, module_args=arguments, task_vars=task_vars or {})
        )
        return result

    def _read(self, given: str) -> list[Any]:
        """Return the documents of a file or folder next to the playbook or role, or of an absolute path."""
        if "objects" in self._task.args:
            raise AnsibleActionFail("parameters are mutually exclusive: objects|manifests")
        path = os.path.expanduser(given)
        if not os.path.isabs(path):
            path = self._loader.path_dwim_relative_stack(self._task.get_search_path(), "files", path)
        try:
            documents = read_manifests(path)
        except SourceError as error:
            raise AnsibleActionFail(str(error)) from None
        strange = [document for document in documents if not isinstance(document, dict)]
        if strange:
            raise AnsibleActionFail(f"{path} holds a document that is no object but {type(strange[0]).__name__}")
        return documents
