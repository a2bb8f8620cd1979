"""The eBPF backend for benchmarks: cgroups and a BPF file system of its own, so that the machine's are left alone."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import os
import pathlib
import re
import signal
import subprocess
import time
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import mount_point

_CLONE_NEWNS = 0x20000
_BPFFS = "/sys/fs/bpf"
_CGROUP = re.compile(r"kp-bench-(?P<pid>\d+)-\d+")
_PATIENCE_SECONDS, _POLL_SECONDS = 5.0, 0.01
_numbers = itertools.count()


class TimedMaps(Dataplane):
    """The pinned state, which notes how long the maps took to be filled."""

    fill_seconds = 0.0

    def write(self, plan: MapPlan) -> None:
        """Carry out a plan; the slowest one counts as filling."""
        started = time.monotonic()
        super().write(plan)
        self.fill_seconds = max(self.fill_seconds, time.monotonic() - started)


def make(config: ProxyConfig) -> EbpfBackend:
    """Return a backend for this process; what it stands on is gone when the process has ended."""
    own = places()
    made = EbpfBackend(config.families, Options(own["bpfDirectory"], own["cgroup"]))
    made.plane = TimedMaps(own["bpfDirectory"], own["cgroup"])
    return made


def fill_seconds(backend: Backend) -> float | None:
    """Return how long the maps of such a backend took to be filled, None for another kind of backend."""
    plane = backend.plane if isinstance(backend, EbpfBackend) else None
    return round(plane.fill_seconds, 3) if isinstance(plane, TimedMaps) else None


def places() -> dict[str, Any]:
    """Make a directory for pins and a cgroup; return them as kproxyd's settings name them.

    The pins are on a BPF file system that this process and its children alone see, and that ends with them: a killed
    run leaves no program attached. It leaves an empty cgroup, which the next run removes.
    """
    _own_bpf_file_system()
    number = next(_numbers)
    pins = os.path.join(_BPFFS, f"bench-{number}")
    cgroup = os.path.join(mount_point(), f"kp-bench-{os.getpid()}-{number}")
    os.mkdir(pins)
    os.mkdir(cgroup)
    atexit.register(_remove_cgroup, pathlib.Path(cgroup))
    return {"bpfDirectory": os.path.join(pins, "kproxy"), "cgroup": cgroup}


@functools.lru_cache(maxsize=1)
def _own_bpf_file_system() -> None:
    _remove_leftovers(pathlib.Path(mount_point()))
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "bpf", "bpf", _BPFFS], check=True)


def _remove_leftovers(hierarchy: pathlib.Path) -> None:
    """Remove the cgroups of runs that were killed, and end what still runs in them."""
    for directory in hierarchy.glob("kp-bench-*"):
        made_by = _CGROUP.fullmatch(directory.name)
        if made_by and not pathlib.Path("/proc", made_by["pid"]).exists():
            _remove_cgroup(directory)


def _remove_cgroup(directory: pathlib.Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for pid in (directory / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    while "populated 1" in (directory / "cgroup.events").read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{directory}: its processes do not end")
        time.sleep(_POLL_SECONDS)
    directory.rmdir()
