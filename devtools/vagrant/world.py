"""A world for virtual machines: namespaces in which libvirtd runs, and whose end takes all machines along.

The network namespace has no way out, so libvirt's bridges and firewall rules exist nowhere else. libvirt's folders are
replaced by ones of this run. Everything is a child of the first process of a PID namespace: when that ends, for
whatever reason, the kernel ends the others. `inside.py` is that first process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from devtools.lab.topology import CACHE

STATE = CACHE / "vagrant-state"
VAGRANT_HOME = CACHE / "vagrant-home"


def command(inner: Sequence[str]) -> list[str]:
    """Return the command that runs `inner` in a world, and dies with its parent: unshare(1) ignores SIGTERM."""
    namespaces = ["--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
    return [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        *namespaces,
        "--",
        sys.executable,
        "-m",
        "devtools.vagrant.inside",
        *inner,
    ]


def environment(base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for Vagrant in a world: a home outside of the user's, nothing to look up elsewhere."""
    return {
        **base,
        "VAGRANT_HOME": str(VAGRANT_HOME),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
        "VAGRANT_BOX_UPDATE_CHECK_DISABLE": "1",
        "VAGRANT_DEFAULT_PROVIDER": "libvirt",
        "LIBVIRT_DEFAULT_URI": "qemu:///system",
    }
