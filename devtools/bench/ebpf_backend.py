"""The eBPF backend for benchmarks: a cgroup and a BPF file system of its own, so that the machine's are left alone."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_backend import EbpfBackend
from ansible_collections.kproxy.dataplane.plugins.module_utils._engine.ebpf_options import Options
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._kernel.cgroup import mount_point


def make(config: ProxyConfig) -> EbpfBackend:
    """Return a backend for this process; its cgroup and mount are removed when the process has ended."""
    own = places()
    return EbpfBackend(config.families, Options(own["bpfDirectory"], own["cgroup"]))


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
