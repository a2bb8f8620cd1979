"""The eBPF backend for benchmarks: a cgroup and a BPF file system of its own, so that the machine's are left alone."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._ebpf.plan import MapPlan
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.backend import Backend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.bpf_dataplane import Dataplane
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import mount_point


class TimedMaps(Dataplane):
    """The pinned state, which notes how long the maps took to be filled."""

    fill_seconds = 0.0

    def write(self, plan: MapPlan) -> None:
        """Carry out a plan; the slowest one counts as filling."""
        started = time.monotonic()
        super().write(plan)
        self.fill_seconds = max(self.fill_seconds, time.monotonic() - started)


def make(config: ProxyConfig) -> EbpfBackend:
    """Return a backend for this process; its cgroup and mount are removed when the process has ended."""
    own = places()
    made = EbpfBackend(config.families, Options(own["bpfDirectory"], own["cgroup"]))
    made.plane = TimedMaps(own["bpfDirectory"], own["cgroup"])
    return made


def fill_seconds(backend: Backend) -> float | None:
    """Return how long the maps of such a backend took to be filled, None for another kind of backend."""
    plane = backend.plane if isinstance(backend, EbpfBackend) else None
    return round(plane.fill_seconds, 3) if isinstance(plane, TimedMaps) else None


def places() -> dict[str, Any]:
    """Make both, and a janitor that removes them after this process; return them as kproxyd's settings name them."""
    mounted = tempfile.mkdtemp(prefix="kp-bench-bpffs-")
    cgroup = os.path.join(mount_point(), os.path.basename(mounted))
    os.mkdir(cgroup)
    subprocess.run(["mount", "-t", "bpf", "bpf", mounted], check=True)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.setsid()
        os.read(reading, 1)
        subprocess.run(["umount", mounted], check=False)
        os.rmdir(mounted)
        os.rmdir(cgroup)
        os._exit(0)
    os.close(reading)
    os.set_inheritable(writing, False)
    return {"bpfDirectory": os.path.join(mounted, "kproxy"), "cgroup": cgroup}
