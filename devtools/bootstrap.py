"""Prepare a bare machine: Debian packages and pinned virtual environments.

Run as a script by `dev` before any third-party package exists, so it needs the standard library alone; prints the
path of the main environment on standard output and everything else on standard error.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
PACKAGES = ROOT / "devtools/apt-packages.txt"
BUILD_PACKAGES = ROOT / "devtools/apt-packages-build.txt"
APT_LOCK = Path("/run/lock/kproxy-dev-apt.lock")


class BootstrapError(Exception):
    """The machine cannot be prepared; the text says what to do."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment: its link in the checkout, what goes in, and the Pythons it may run on, best first."""

    name: str
    requirements: tuple[str, ...]
    pythons: tuple[str, ...]


MAIN = Environment(".venv", ("devtools/requirements.txt",), ("3.13", "3.12", "3.14", "3.11"))
OLDEST = Environment(".venv-oldest", ("devtools/requirements-oldest.txt",), ("3.11", "3.12", "3.13"))


def say(message: str) -> None:
    """Tell the user what is going on, on standard error and at once."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, so that parallel runs wait for each other instead of colliding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def package_names(text: str) -> list[str]:
    """Return the package names of a list in the format of apt-packages.txt."""
    lines = (line.split() for line in text.splitlines())
    return [words[0] for words in lines if words and not words[0].startswith("#")]


def missing_packages(names: Iterable[str]) -> list[str]:
    """Return those of the Debian packages that are not installed."""
    wanted = list(names)
    query = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    installed = {line.split()[0] for line in query.stdout.splitlines() if line.endswith(" installed")}
    return [name for name in wanted if name not in installed]


def ensure_packages(listing: Path) -> None:
    """Install the missing packages of a list; does nothing when all are there.

    Raises:
        BootstrapError: not root, not a Debian, or apt failed.
    """
    names = package_names(listing.read_text())
    if shutil.which("dpkg-query") is None:
        raise BootstrapError(f"this is no Debian; install the equivalents of {', '.join(names)} by hand")
    if not missing_packages(names):
        return
    if os.geteuid() != 0:
        raise BootstrapError(f"run as root, or first: apt-get install {' '.join(missing_packages(names))}")
    with locked(APT_LOCK):
        missing = missing_packages(names)
        if not missing:
            return
        say(f"dev: installing {len(missing)} Debian packages: {' '.join(missing)}")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
        apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Use-Pty=0"]
        for command in ([*apt, "update"], [*apt, "install", "--yes", "--no-install-recommends", *missing]):
            result = subprocess.run(command, env=environment, stdout=sys.stderr, check=False)
            if result.returncode != 0:
                raise BootstrapError(f"`{' '.join(command)}` failed with exit code {result.returncode}")


def interpreter_candidates(version: str) -> list[Path]:
    """Return where a Python of this minor version might be: PATH first, then pyenv's versions, newest first."""
    name = f"python{version}"
    on_path = [Path(folder) / name for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [*on_path, *sorted(pyenv.glob(f"{version}.*/bin/{name}"), reverse=True)]


def usable(interpreter: Path) -> bool:
    """Tell whether an interpreter runs (pyenv's shims may not) and can make environments."""
    if not os.access(interpreter, os.X_OK):
        return False
    probe = [str(interpreter), "-I", "-c", "import ensurepip, venv, ssl"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def find_interpreter(versions: Iterable[str]) -> tuple[str, Path]:
    """Return the first usable Python of the wanted minor versions.

    Raises:
        BootstrapError: there is none.
    """
    wanted = list(versions)
    for version in wanted:
        for candidate in interpreter_candidates(version):
            if usable(candidate):
                return version, candidate
    raise BootstrapError(f"no usable Python found; wanted one of {', '.join(wanted)} (Debian: apt-get install python3)")


def environment_key(environment: Environment) -> str:
    """Return a digest that changes when the environment must be made anew."""
    digest = hashlib.sha256(f"{ROOT}\n{environment.pythons}\n".encode())
    for name in environment.requirements:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:16]


def ensure_environment(environment: Environment) -> Path:
    """Return the path of an environment with exactly the pinned packages, making it when needed.

    Each set of requirements gets a folder of its own and the link is switched when that is complete, so a command
    that runs meanwhile keeps the environment it started with.
    """
    link = ROOT / environment.name
    home = CACHE / "environments" / f"{environment.name.lstrip('.')}-{environment_key(environment)}"
    complete = home / "complete"
    if not complete.exists():
        with locked(CACHE / f"{environment.name.lstrip('.')}.lock"):
            if not complete.exists():
                make_environment(environment, home)
                complete.touch()
    if not link.is_symlink() or link.resolve() != home:
        switch_link(link, home)
    return home


def make_environment(environment: Environment, home: Path) -> None:
    """Build the virtual environment from nothing; a half-made one of a killed run is removed first."""
    version, interpreter = find_interpreter(environment.pythons)
    say(f"dev: making {environment.name} with Python {version} (about half a minute)")
    if environment is MAIN and version == "3.11":
        say("dev: no Python 3.12 or newer here, so the main environment has ansible-core 2.19 instead of 2.21")
    if home.exists():
        shutil.rmtree(home)
    run([str(interpreter), "-m", "venv", str(home)])
    pip = [str(home / "bin/python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--retries", "10"]
    run([*pip, *(word for name in environment.requirements for word in ("--requirement", str(ROOT / name)))])
    packages = next(home.glob("lib/python3*/site-packages"))
    (packages / "kproxy-checkout.pth").write_text(f"{ROOT}\n")


def run(command: list[str]) -> None:
    """Run a command whose output belongs on standard error.

    Raises:
        BootstrapError: it failed.
    """
    result = subprocess.run(command, stdout=sys.stderr, check=False)
    if result.returncode != 0:
        raise BootstrapError(f"`{' '.join(command)}` failed with exit code {result.returncode}")


def switch_link(link: Path, target: Path) -> None:
    """Point a symbolic link at a target in one step."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    fresh = link.with_name(f"{link.name}.{os.getpid()}")
    fresh.symlink_to(target)
    fresh.replace(link)


def main() -> int:
    """Prepare the machine and print the main environment's path."""
    try:
        if sys.version_info < (3, 11):  # noqa: UP036 - runs on whatever python3 the machine has
            raise BootstrapError(f"python3 is {sys.version.split()[0]}; Python 3.11 or newer is needed")
        ensure_packages(PACKAGES)
        print(ensure_environment(MAIN))
    except BootstrapError as error:
        say(f"dev: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
