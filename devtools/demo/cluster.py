"""The demo's API server: it lives in the lab's fabric and stays up with the lab."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

from devtools.control_plane import ControlPlane, new_control_plane
from devtools.lab.topology import Lab

ADDRESS = "10.77.0.1"
PORT = 6443
SERVICE_CIDRS = ("10.96.0.0/16", "fd00:10:96::/112")
_PIDS = "pids"
_KIND = "kind"
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
    """Return the API server in the lab's fabric, started unless an earlier demo left it running.

    One that is started anew forgets what it held: nodes would wait for its history to reach their own.
    """
    plane = new_control_plane(
        data_folder(lab),
        bind=ADDRESS,
        port=PORT,
        network_namespace=lab.fabric,
        service_cidrs=SERVICE_CIDRS,
    )
    kind = data_folder(lab) / _KIND
    if kind.exists() and kind.read_text() == plane.kind and plane.attach():
        return plane
    end_previous(lab)
    plane.start()
    (data_folder(lab) / _PIDS).write_text("\n".join(str(pid) for pid in plane.process_ids))
    kind.write_text(plane.kind)
    return plane


def write_kubeconfig(lab: Lab, plane: ControlPlane) -> Path:
    """Write the credentials of the proxy's identity where the lab's inventory looks, unless they are there."""
    path = lab.state / "kubeconfig"
    return path if path.exists() and plane.url in path.read_text() else plane.write_kubeconfig(path)
