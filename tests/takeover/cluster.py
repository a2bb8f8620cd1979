"""A cluster that kube-proxy serves, behind an API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from devtools.control_plane import ControlPlane
from tests.module_run import run_module


class Cluster:
    """An API server with the objects of case 19, 20 and 30, and a kubeconfig of an administrator."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.admin = plane.admin
        self.kubeconfig = folder / "admin.conf"
        self.kubeconfig.write_text(plane.kubeconfig("admin", groups=["system:masters"]))

    def module(self, name: str, **options: Any) -> dict[str, Any]:
        return run_module(name, {"kubeconfig": str(self.kubeconfig), **options})
