# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a check found: one line for people, and the fixes that would settle it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OK = "ok"
BLOCK = "block"
FIX = "fix"
WARN = "warn"
SKIP = "skip"


@dataclass(frozen=True)
class Sysctl:
    """A kernel setting to be set now and at every boot."""

    name: str
    value: str


@dataclass(frozen=True)
class Finding:
    """The result of one check on one node.

    ``result`` is ``ok``, ``block`` (the node is refused), ``fix`` (``sysctls``, ``modules`` and ``packages`` say how),
    ``warn`` (go on, but tell) or ``skip`` (has no meaning for the backend in use). A block may be overridden only where
    ``overridable`` says so: what it guards against is then the operator's risk.
    """

    check: str
    result: str
    message: str
    sysctls: tuple[Sysctl, ...] = ()
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    overridable: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for Ansible and JSON."""
        return {
            "check": self.check,
            "result": self.result,
            "message": self.message,
            "sysctls": [{"name": sysctl.name, "value": sysctl.value} for sysctl in self.sysctls],
            "modules": list(self.modules),
            "packages": list(self.packages),
            "overridable": self.overridable,
        }
