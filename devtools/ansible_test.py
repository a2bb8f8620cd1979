"""Where `ansible-test` can work: a copy of the collection on the path it insists on, and a home of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from devtools.environment import CACHE, COLLECTION, ROOT

# ansible-test fetches get-pip.py from a host that a machine behind a package mirror cannot reach, unless the file is
# there already. Python's own ensurepip does the same. ansible-core 2.19 looks for the first name, 2.21 for the second.
GET_PIP_NAMES = ("get_pip_24_2.py", "get_pip_25_2.py")
GET_PIP = """\
import os
import subprocess
import sys

environment = {name: value for name, value in os.environ.items() if name != "GET_PIP"}
packages = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
ensurepip = [sys.executable, "-m", "ensurepip", "--default-pip"]
subprocess.check_call(ensurepip, env=environment, stdout=subprocess.DEVNULL)
subprocess.check_call([sys.executable, "-m", "pip", "install", *packages], env=environment)
"""


def tracked_files(root: Path, folder: Path) -> list[Path]:
    """Return what git knows or would know of a folder, relative to it: neither ignored files nor deleted ones."""
    listing = subprocess.run(
        ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [Path(name) for name in sorted(set(listing.split("\0"))) if name and (folder / name).is_file()]


def copy_collection(name: str) -> Path:
    """Return a fresh copy of the collection below a folder called ansible_collections; a symlink would not do.

    Its tests/output stays from the last run, as ansible-test keeps its own environments there.
    """
    target = CACHE / "ansible-test" / name / "ansible_collections/kproxy/dataplane"
    output = target / "tests/output"
    kept = target.with_name("output")
    if output.exists():
        output.rename(kept)
    shutil.rmtree(target, ignore_errors=True)
    for path in tracked_files(ROOT, COLLECTION):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(COLLECTION / path, target / path)
    if kept.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        kept.rename(output)
    # ansible-test asks git for the files; the enclosing checkout would say that it ignores them all.
    subprocess.run(["git", "init", "--quiet", str(target)], check=True)
    (target / ".git/info/exclude").write_text("tests/output/\n")
    return target


def make_home() -> Path:
    """Return a home folder with the stand-in for get-pip.py and the user's own pip settings."""
    home = CACHE / "ansible-test/home"
    cache = home / ".ansible/test/cache"
    cache.mkdir(parents=True, exist_ok=True)
    for name in GET_PIP_NAMES:
        (cache / name).write_text(GET_PIP)
    for name in (".pip", ".config/pip"):
        settings, link = Path.home() / name, home / name
        if settings.exists() and not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(settings)
    return home


def environment(venv: Path) -> dict[str, str]:
    """Return the variables to run ansible-test of one environment with."""
    return {
        "HOME": str(make_home()),
        "PATH": os.pathsep.join([str(venv / "bin"), os.environ["PATH"]]),
        "VIRTUAL_ENV": str(venv),
        "ANSIBLE_CONFIG": "",
    }
