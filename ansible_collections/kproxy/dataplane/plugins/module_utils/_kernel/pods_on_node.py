# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which pods and which guests this node runs, without asking the API server.

The kubelet keeps a folder for each pod of the node, ``NAMESPACE_NAME_UID``, with a folder for each container
(kubernetes, pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory). No name holds an underscore.
"""

from __future__ import annotations

import os

LOG_DIRECTORY = "/var/log/pods"
#: Programs that stand for a running guest: the container runtime's shim of Kata Containers, and that of gVisor.
_SHIMS = {"containerd-shim-kata-v2": "kata", "containerd-shim-runsc-v1": "gvisor"}


def containers_by_pod(directory: str = LOG_DIRECTORY) -> dict[str, list[str]]:
    """Return the containers, init containers too, of each pod as ``NAMESPACE/NAME``; empty where no kubelet runs."""
    found: dict[str, set[str]] = {}
    for folder in _folders(directory):
        parts = os.path.basename(folder).split("_")
        if len(parts) == 3:
            found.setdefault("/".join(parts[:2]), set()).update(map(os.path.basename, _folders(folder)))
    return {pod: sorted(names) for pod, names in sorted(found.items())}


def guest_runtimes(proc: str = "/proc") -> list[str]:
    """Return which runtimes with a kernel of their own have containers here, of ``kata`` and ``gvisor``."""
    found = set()
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                with open(os.path.join(proc, name, "cmdline"), "rb") as file:
                    program = os.path.basename(file.read(4096).split(b"\0")[0].decode("utf-8", "replace"))
            except OSError:  # it has ended meanwhile
                continue
            if program in _SHIMS:
                found.add(_SHIMS[program])
    return sorted(found)


def _folders(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
