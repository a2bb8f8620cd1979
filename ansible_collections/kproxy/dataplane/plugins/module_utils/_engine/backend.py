# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of a dataplane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import FrontendKey
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable, TableDelta


class CommitError(Exception):
    """A commit was refused; what was in force before still is.

    frontend: whose element the kernel refused, where that is known. in_force: the change itself was taken, and only
    removing what it left over failed. another_way: the next plan_all() goes about it in another way than the one
    refused.
    """

    def __init__(
        self,
        message: str,
        frontend: FrontendKey | None = None,
        in_force: bool = False,
        another_way: bool = False,
    ) -> None:
        self.frontend = frontend
        self.in_force = in_force
        self.another_way = another_way
        super().__init__(message)


class FrontendState(NamedTuple):
    """One frontend as it is, or would be, in the kernel: whose it is, what outsiders get, and where it leads."""

    service: str
    verdict: str
    endpoints: tuple[tuple[bytes, int], ...]
    local_endpoints: tuple[tuple[bytes, int], ...]


class BackendPlan(Protocol):
    """A change that a backend has worked out and not yet made."""

    @property
    def empty(self) -> bool:
        """Nothing would be written."""

    @property
    def size(self) -> int:
        """Number of elements or entries that would be written or removed."""


class Backend(Protocol):
    """A dataplane. A commit that fails leaves the last good state in force; the next plan is then plan_all()."""

    name: str

    def plan_all(self, table: ServiceTable) -> BackendPlan:
        """Read the kernel and return what makes it be as the table says; adopts what is right already."""

    def plan(self, table: ServiceTable, delta: TableDelta) -> BackendPlan:
        """Return what one change of the table asks for."""

    def commit(self, plan: Any) -> None:
        """Make the change. Raises CommitError."""

    def preview(self, plan: Any) -> tuple[Mapping[FrontendKey, FrontendState], Mapping[FrontendKey, FrontendState]]:
        """Return the frontends in the kernel before and after a plan that has not been committed."""

    def undisturbed(self) -> bool:
        """Tell, at next to no cost, that nothing can have altered what the last commit left; when in doubt, no."""

    def exists(self) -> bool:
        """Tell whether anything of ours is in the kernel."""

    def remove(self) -> bool:
        """Remove all that is ours from the kernel; return whether there was anything."""

    def close(self) -> None:
        """Give back sockets; what is in the kernel stays."""
