"""The demo's API server: it lives in the lab's fabric and stays up with the lab."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path
from typing import Any

from devtools.control_plane import ControlPlane, start_control_plane
from devtools.lab.topology import Lab

ADDRESS = "10.77.0.1"
PORT = 6443
SERVICE_CIDRS = ("10.96.0.0/16", "fd00:10:96::/112")
_PIDS = "pids"
#: A real API server drains its watches before it ends.
_END_SECONDS = 10.0


def data_folder(lab: Lab) -> Path:
    """Where the API server keeps its certificates, objects and logs."""
    return lab.state / "control-plane"


def end_previous(lab: Lab) -> None:
    """End the API server of an earlier demo, by the process numbers that it left, and wait until it is gone."""
    record = data_folder(lab) / _PIDS
    if not record.exists():
        return
    for text in record.read_text().split():
        command_line = Path(f"/proc/{text}/cmdline")
        # The number may belong to somebody else by now.
        if command_line.exists() and str(data_folder(lab)).encode() in command_line.read_bytes():
            _end(int(text))
    record.unlink()


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(process, number)
                if select.select([process], [], [], _END_SECONDS)[0]:
                    return
        finally:
            os.close(process)


def start(lab: Lab) -> ControlPlane:
    """Start the API server in the lab's fabric; it outlives this process."""
    end_previous(lab)
    plane = start_control_plane(
        data_folder(lab),
        bind=ADDRESS,
        port=PORT,
        network_namespace=lab.fabric,
        service_cidrs=SERVICE_CIDRS,
    )
    (data_folder(lab) / _PIDS).write_text("\n".join(str(pid) for pid in plane.process_ids))
    return plane


def write_kubeconfig(lab: Lab, plane: ControlPlane) -> Path:
    """Write the credentials of the proxy's identity to where the lab's inventory looks for them."""
    return plane.write_kubeconfig(lab.state / "kubeconfig")


def node_manifest(name: str, addresses: list[str], pod_cidrs: list[str]) -> dict[str, Any]:
    """Return the Node object of a lab node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": pod_cidrs[0], "podCIDRs": pod_cidrs},
        "status": {"addresses": [{"type": "InternalIP", "address": address} for address in addresses]},
    }
