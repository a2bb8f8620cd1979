# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What a running kproxyd keeps in place, and a module therefore leaves to it.

What a module writes beside a kproxyd that is in step, kproxyd takes for a foreign change and undoes within a second,
until the role sidecar has given it the new manifests or settings: addresses would come, go and come again. kproxyd
makes the same change once, when it learns of it.

Programs of another layout have maps of their own. Were they replaced while their kproxyd runs, it would attach them
again within seconds, beside those that took their place: packets would pass both, and connections be lost between them.
The kproxyd of the version that is being installed takes over when it starts, after the other has ended.
"""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._cli.client import DaemonDown, Refused, ask
from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.layout import SCHEMA
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_migration import schemas
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.unit import SOCKET_PATH


def left_to_kproxyd(root: str, service: Service) -> str:
    """Return why the programs below ``root`` are to be left to the next start of kproxyd; empty if they are not."""
    if not set(schemas(root)) - {SCHEMA} or not service.state().active:
        return ""
    return (
        "the eBPF programs of another version serve, kept by its kproxyd: they are left in place until the kproxyd of "
        "this version starts (role sidecar), which programs all that is named here"
    )


def kept_by_kproxyd(canary: bool, socket_path: str = SOCKET_PATH) -> bool:
    """Return whether a kproxyd holds the kernel to what it knows, after it has repaired what differs from that.

    canary: whether a canary's tables are asked for. A kproxyd that has only those, or all Services, keeps no others.
    One that has no list yet, or whose commits fail, keeps nothing.
    """
    try:
        status = ask(socket_path, "status")
        if not status["inStep"] or (status.get("canary") is not None) is not canary:
            return False
        return not ask(socket_path, "verify")["error"]
    except (DaemonDown, Refused):
        return False
