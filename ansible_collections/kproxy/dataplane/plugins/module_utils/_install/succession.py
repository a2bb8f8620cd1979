# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""eBPF programs of another version, and a kproxyd that keeps them in place.

Programs of another layout have maps of their own. Were they replaced while their kproxyd runs, it would attach them
again within seconds, beside those that took their place: packets would pass both, and connections be lost between them.
The kproxyd of the version that is being installed takes over when it starts, after the other has ended.
"""

from __future__ import annotations

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.layout import SCHEMA
from ansible_collections.kproxy.dataplane.plugins.module_utils._install.service import Service
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_migration import schemas


def left_to_kproxyd(root: str, service: Service) -> str:
    """Return why the programs below ``root`` are to be left to the next start of kproxyd; empty if they are not."""
    if not set(schemas(root)) - {SCHEMA} or not service.state().active:
        return ""
    return (
        "the eBPF programs of another version serve, kept by its kproxyd: they are left in place until the kproxyd of "
        "this version starts (role sidecar), which programs all that is named here"
    )
