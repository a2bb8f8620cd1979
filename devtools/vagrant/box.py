"""Builds a Vagrant box (provider libvirt) of a Debian release where none can be downloaded.

The box has no boot loader: its own Vagrantfile lets libvirt start kernel and initrd, which lie beside the disk. That
keeps the build free of loop devices and of anything that runs the new system before its first boot.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from devtools.bootstrap import locked, say
from devtools.lab import rootfs
from devtools.lab.commands import run
from devtools.lab.topology import CACHE, LabError

#: What a machine has besides what a lab node has: a kernel, drivers on demand, and IPVS to be rid of.
PACKAGES = [*rootfs.PACKAGES, "linux-image-cloud-amd64", "initramfs-tools", "udev", "ipvsadm", "e2fsprogs"]
DISK_MIB = 2048
# Vagrant's well-known first key, which it replaces by one of its own at the first start of each machine.
# https://github.com/hashicorp/vagrant/tree/main/keys
INSECURE_KEY = (
    "ssh-rsa AAAAB3NzaC1yc2EAAAABIwAAAQEA6NF8iallvQVp22WDkTkyrtvp9eWW6A8YVr+kz4TjGYe7gHzIw+niNltGEFHzD8+v"
    "1I2YJ6oXevct1YeS0o9HZyN1Q9qgCgzUFtdOKLv6IedplqoPkcmF0aYet2PkEDo3MlTBckFXPITAMzF8dJSIFo9D8HfdOV0IAdx4"
    "O7PtixWKn5y2hMNG0zQPyUecp4pzC6kivAIhyfHilFR61RGL+GPXQ2MWZWFYbAGjyiYJnAmCP3NOTd0jMZEnDkbUvxhMmBYSdETk"
    "1rRgm+R4LOzFUGaHqHDLKLX+FIPKcF96hrucXzcWyLbIbEgE98OHlnVYCzRdK8jlqm8tehUc9c9WhQ== vagrant insecure pu"
    "blic key\n"
)
FILES = {
    "etc/systemd/network/eth0.network": "[Match]\nName=eth0\n\n[Network]\nDHCP=yes\n",
    "etc/sudoers.d/vagrant": "vagrant ALL=(ALL) NOPASSWD: ALL\n",
    "etc/fstab": "/dev/vda / ext4 defaults,noatime 0 1\n",
    "etc/initramfs-tools/conf.d/box": "COMPRESS=zstd\n",
    "etc/ssh/sshd_config.d/lab.conf": "UseDNS no\nMaxStartups 50\n",
    "etc/systemd/system/ssh.service.d/keys.conf": "[Service]\nExecStartPre=\nExecStartPre=/usr/bin/ssh-keygen -A\n",
}
ENABLED = {
    "multi-user.target.wants": ("systemd-networkd.service", "ssh.service"),
    "network-online.target.wants": ("systemd-networkd-wait-online.service",),
    "sockets.target.wants": ("systemd-networkd.socket",),
}
METADATA = {"provider": "libvirt", "format": "qcow2", "virtual_size": 2}
# Only what follows from how the box is made. A Vagrantfile that uses the box may say otherwise.
VAGRANTFILE = """\
here = File.dirname(__FILE__)
Vagrant.configure("2") do |config|
  config.vm.synced_folder ".", "/vagrant", disabled: true
  config.vm.provider :libvirt do |libvirt|
    if ENV["KPROXY_VAGRANT_EMULATE"] == "true"
      libvirt.driver = "qemu"
      libvirt.cpu_mode = "custom"
      libvirt.cpu_model = "qemu64"
    end
    libvirt.kernel = File.join(here, "vmlinuz")
    libvirt.initrd = File.join(here, "initrd.img")
    libvirt.cmd_line = "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet"
    libvirt.disk_bus = "virtio"
    libvirt.graphics_type = "none"
    libvirt.video_type = "none"
    libvirt.random model: "random"
  end
end
"""


def key(release: str) -> str:
    """Return a digest that changes when the box must be built anew."""
    parts = (release, PACKAGES, rootfs.MASKED, FILES, ENABLED, DISK_MIB, METADATA, VAGRANTFILE)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def name(release: str) -> str:
    """Return what the box is called in Vagrant; the name changes with the contents, as Vagrant knows boxes by it."""
    return f"kproxy/{release}-{key(release)}"


def ensure_box(release: str) -> Path:
    """Return the box of a release as a folder, building it when there is none for these contents (about 2 minutes).

    Raises:
        LabError: no such release, or a step failed.
    """
    if release not in rootfs.SUITES:
        raise LabError(f"there is no box of {release!r}; use one of {', '.join(rootfs.SUITES)}")
    box = CACHE / f"box-{release}-{key(release)}"
    with locked(CACHE / "box.lock"):
        if not box.exists():
            build(release, box)
    return box


def build(release: str, box: Path) -> None:
    """Build the box beside its place and move it there when complete."""
    say(f"vagrant: building a box ({release} with its own kernel, once, about two minutes)")
    unfinished = box.with_name(f"{box.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="kproxy-box-", dir=CACHE) as work:
        root = Path(work) / "root"
        rootfs.bootstrap(release, root, PACKAGES)
        furnish(root)
        for kind, target in (("vmlinuz", "vmlinuz"), ("initrd.img", "initrd.img")):
            shutil.copy(newest(root / "boot", kind), unfinished / target)
        raw = Path(work) / "disk.raw"
        run(["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(raw), f"{DISK_MIB}M"])
        # Vagrant hands the disk to libvirt through Ruby in small pieces: a third of the size is a third of the time.
        shrink = ["-c", "-o", "compression_type=zstd"]
        run(["qemu-img", "convert", *shrink, "-f", "raw", "-O", "qcow2", str(raw), str(unfinished / "box.img")])
    (unfinished / "metadata.json").write_text(json.dumps(METADATA))
    (unfinished / "Vagrantfile").write_text(VAGRANTFILE)
    pack(unfinished)
    unfinished.rename(box)


def pack(folder: Path) -> None:
    """Add the file that `vagrant box add` reads. It is not compressed: it never leaves this machine."""
    members = ["metadata.json", "Vagrantfile", "vmlinuz", "initrd.img", "box.img"]
    run(["tar", "-C", str(folder), "-cf", str(folder / "package.box"), *members])
    (folder / "box.img").unlink()


def newest(folder: Path, kind: str) -> Path:
    """Return the kernel or initrd of the newest version.

    Raises:
        LabError: there is none.
    """
    found = sorted(folder.glob(f"{kind}-*"), key=lambda path: [int(part) for part in re.findall(r"\d+", path.name)])
    if not found:
        raise LabError(f"the box has no {kind}: its kernel package did not install")
    return found[-1]


def furnish(root: Path) -> None:
    """Turn a fresh Debian tree into a box: Vagrant's user and key, an address by DHCP, no shared identity."""
    rootfs.furnish(root)
    for place, content in FILES.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text(content)
    (root / "etc/sudoers.d/vagrant").chmod(0o440)
    units = root / "etc/systemd/system"
    for target, unit in wanted_units():
        (units / target).mkdir(parents=True, exist_ok=True)
        (units / target / unit).unlink(missing_ok=True)
        (units / target / unit).symlink_to(f"/lib/systemd/system/{unit}")
    run(["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", "vagrant"])
    ssh = root / "home/vagrant/.ssh"
    ssh.mkdir(mode=0o700)
    (ssh / "authorized_keys").write_text(INSECURE_KEY)
    owner = (root / "home/vagrant").stat()
    for path in (ssh, ssh / "authorized_keys"):
        os.chown(path, owner.st_uid, owner.st_gid)


def wanted_units() -> Iterator[tuple[str, str]]:
    """Yield the units that are enabled, each with the target that starts it."""
    for target, units in ENABLED.items():
        yield from ((target, unit) for unit in units)
