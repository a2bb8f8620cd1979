"""`./dev vagrant`: the molecule scenario `vagrant`, on virtual machines with kernels of their own.

With the provider libvirt everything runs in a world of its own (`devtools.vagrant.world`) on a box made here, so it
needs no box hub and leaves nothing behind. With virtualbox, Vagrant runs as you have it and downloads a box.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import molecule_plugins.vagrant

from ansible_collections.kproxy.dataplane.plugins.plugin_utils._bundle import BundleError, build
from devtools.bootstrap import ROOT, BootstrapError, ensure_packages, say
from devtools.environment import BIN, CACHE, COLLECTION
from devtools.lab import rootfs
from devtools.lab.topology import LabError
from devtools.vagrant import acceleration, box, world

SCENARIO = "vagrant"
PACKAGES = ROOT / "devtools/apt-packages-vagrant.txt"
LOCK = Path("/run/lock/kproxy-dev-vagrant.lock")
DOWNLOADED_BOX = "debian/bookworm64"


def parser() -> argparse.ArgumentParser:
    """Return the command line's description."""
    result = argparse.ArgumentParser(prog="./dev vagrant", description=__doc__)
    result.add_argument("--provider", choices=("libvirt", "virtualbox"), default="libvirt")
    result.add_argument("--box", help=f"a box to download instead of the one made here, such as {DOWNLOADED_BOX}")
    result.add_argument("--suite", choices=rootfs.SUITES, default=rootfs.SUITES[0], help="Debian release of the box")
    result.add_argument("--emulate", action="store_true", help="do not try KVM; slow, and works everywhere")
    result.add_argument("--keep", action="store_true", help="a shell beside the machines afterwards; its end ends them")
    return result


def variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return what the scenario's molecule.yml reads, and what molecule itself needs."""
    modules = Path(molecule_plugins.vagrant.__path__[0]) / "modules"
    return {
        "KPROXY_VAGRANT_PROVIDER": arguments.provider,
        "KPROXY_VAGRANT_BOX": arguments.box or DOWNLOADED_BOX,
        "KPROXY_VAGRANT_MODULES": str(modules),
        "MOLECULE_EPHEMERAL_DIRECTORY": str(CACHE / "molecule" / SCENARIO),
        "MOLECULE_GLOB": str(COLLECTION / "molecule/vagrant/molecule.yml"),
        "ANSIBLE_CONFIG": "",
        "COLUMNS": os.environ.get("COLUMNS", "160"),
    }


def molecule(keep: bool) -> list[str]:
    """Return the command that runs the scenario, and a shell after it where that was asked for."""
    test = [str(BIN / "molecule"), "test", "--scenario-name", SCENARIO]
    if not keep:
        return test
    story = "echo 'dev vagrant: the machines are up (molecule login -s vagrant -h gpu-a); leave this shell to end them'"
    shell = f'"$@" --destroy never; code=$?; {story}; "${{SHELL:-bash}}"; exit $code'
    return ["bash", "-c", shell, "bash", *test]


def prepare_own_box(suite: str, emulate: bool) -> dict[str, str]:
    """Make the box known to the world's Vagrant; returns what the scenario must know about it."""
    folder, name = box.ensure_box(suite), box.name(suite)
    environment = world.environment()
    listed = subprocess.run(["vagrant", "box", "list"], env=environment, capture_output=True, text=True, check=True)
    if name not in listed.stdout:
        add = ["vagrant", "box", "add", "--force", "--name", name, str(folder / "package.box")]
        subprocess.run(add, env=environment, capture_output=True, text=True, check=True)
    slow = emulate or not acceleration.works(folder / "vmlinuz")
    say(f"vagrant: {'emulated machines, as KVM does not work here' if slow else 'machines with KVM'}")
    return {"KPROXY_VAGRANT_BOX": name, "KPROXY_VAGRANT_EMULATE": "true" if slow else "false"}


def prepare_world(arguments: argparse.Namespace) -> dict[str, str]:
    """Have everything here that the world will need, as it has no way out; returns what the scenario must know.

    Raises:
        LabError, BootstrapError, BundleError: something cannot be had; the text says what to do.
    """
    if os.geteuid() != 0:
        raise LabError("run as root: libvirtd gets namespaces of its own")
    ensure_packages(PACKAGES)
    build(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "kproxy-dataplane")
    return {} if arguments.box else prepare_own_box(arguments.suite, arguments.emulate)


def run(arguments: argparse.Namespace) -> int:
    """Run the scenario; whatever ends this process ends the world and all in it."""
    environment = os.environ | variables(arguments)
    command = molecule(arguments.keep)
    if arguments.provider == "libvirt":
        environment |= prepare_world(arguments)
        command = world.command(command)
    try:
        with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
            try:
                return process.wait()
            finally:
                # Does nothing to one that has ended.
                process.kill()
    finally:
        shutil.rmtree(world.STATE, ignore_errors=True)


def main(argv: list[str]) -> int:
    """Run the scenario from nothing to nothing."""
    arguments = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    try:
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(CACHE / "molecule" / SCENARIO, ignore_errors=True)
            return run(arguments)
    except BlockingIOError:
        print("dev vagrant: another run is going on", file=sys.stderr)
    except (BootstrapError, BundleError, LabError) as error:
        print(f"dev vagrant: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"dev vagrant: `{' '.join(error.cmd)}` failed: {error.stderr or error.returncode}", file=sys.stderr)
    return 1
