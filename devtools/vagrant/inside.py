"""The first process of a world: mounts, libvirtd, and the command the world was made for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from devtools.lab.commands import run
from devtools.lab.topology import LabError
from devtools.vagrant.world import STATE, environment
from devtools.waiting import eventually

SOCKET = Path("/run/libvirt/libvirt-sock")
REPLACED = ("/etc/libvirt", "/var/lib/libvirt", "/var/cache/libvirt", "/var/log/libvirt")
# No security driver, no cgroups, no devices of the host: all of them would need more than these namespaces hold.
QEMU_CONF = """\
security_driver = "none"
user = "root"
group = "root"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
remember_owner = 0
"""
LIBVIRTD_CONF = """\
unix_sock_group = "root"
auth_unix_ro = "none"
auth_unix_rw = "none"
"""
START_SECONDS = 60.0


def furnish() -> None:
    """Mount and connect what the world needs, from inside."""
    run(["mount", "-t", "sysfs", "sysfs", "/sys"])
    # Hides the host's D-Bus, systemd and udev from libvirt, which would register machines there.
    run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])
    Path("/run/lock").mkdir()
    for target in REPLACED:
        own = STATE / target.strip("/").replace("/", "-")
        own.mkdir(parents=True)
        run(["mount", "--bind", str(own), target])
    for name, text in (("qemu.conf", QEMU_CONF), ("libvirtd.conf", LIBVIRTD_CONF)):
        (Path("/etc/libvirt") / name).write_text(text)
    run(["ip", "link", "set", "lo", "up"])


def start_libvirtd() -> None:
    """Start libvirtd and wait until it answers.

    Raises:
        LabError: it ended, or does not answer; the end of its log is in the text.
    """
    log = STATE / "libvirtd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(["libvirtd"], stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def answers() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return process.poll() is not None or probe.connect_ex(str(SOCKET)) == 0

    eventually(answers, "libvirtd answers", START_SECONDS)
    if process.poll() is not None:
        raise LabError(f"libvirtd ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}")


def main(inner: Sequence[str]) -> int:
    """Furnish the world, start libvirtd, run a command in it, and end; the rest ends with this process."""
    if os.getpid() != 1:
        raise LabError("this replaces /run and /sys: it runs only as the first process of namespaces of its own")
    shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir(parents=True)
    furnish()
    start_libvirtd()
    return subprocess.run(inner, env=environment(), check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LabError as error:
        print(f"dev vagrant: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
