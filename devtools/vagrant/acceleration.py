"""Whether virtual machines can run at the processor's speed here, found out by booting one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

DEVICE = Path("/dev/kvm")
#: Without a root filesystem a kernel gets as far as its panic, which is a second away on a machine that works.
PROBE_SECONDS = 20.0
PANIC = b"Unable to mount root fs"


def probe_command(kernel: Path, accelerator: str) -> list[str]:
    """Return the command that boots a kernel until its panic, which ends the machine."""
    return [
        "qemu-system-x86_64",
        *("-accel", accelerator, "-m", "256", "-kernel", str(kernel), "-append", "console=ttyS0 panic=-1"),
        *("-display", "none", "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot"),
    ]


def works(kernel: Path, accelerator: str = "kvm", seconds: float = PROBE_SECONDS) -> bool:
    """Tell whether a kernel boots. The device being there is no proof: nested virtualization may be broken."""
    if accelerator == "kvm" and not os.access(DEVICE, os.R_OK | os.W_OK):
        return False
    probe = probe_command(kernel, accelerator)
    try:
        result = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return False
    return PANIC in result.stdout
