# Copyright: (c) 2026, kproxy.dataplane contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: may change at any time. Packs kproxyd and kproxyctl into one file that any node's python3 runs.

The file is a zipapp made by shiv: this collection's module_utils and the libraries pinned in
_sidecar/requirements.txt, which pip checks against their hashes. Equal inputs give equal bytes on every controller, so
the digest tells whether a node needs it. Results are kept by a digest of the inputs; with a folder of wheels nothing
is fetched.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

COLLECTION = Path(__file__).resolve().parents[2]
MODULE_UTILS = Path("plugins/module_utils")
REQUIREMENTS = MODULE_UTILS / "_sidecar" / "requirements.txt"
ENTRY_POINT = "ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.entry:main"
# -E and -s: the node's environment variables and user packages must not reach a root daemon.
INTERPRETER = "/usr/bin/python3 -Es"
# Where the file unpacks itself once per version; the unit's CacheDirectory, shared with kproxyctl.
UNPACK_ROOT = "/var/cache/kproxy"
# Resolved for the oldest node, so that every controller packs the same files.
TARGET = (
    "--platform", "manylinux2014_x86_64", "--implementation", "cp", "--abi", "cp39", "--abi", "none",
    "--python-version", "3.9", "--only-binary", ":all:", "--no-deps",
)  # fmt: skip
PACKED_SUFFIXES = (".py", ".o", ".txt", ".json")
# 1980-01-01, the first moment a zip file can name.
EPOCH = "315532800"


class BundleError(Exception):
    """The bundle cannot be made; the message says what to do."""


class Bundle(NamedTuple):
    """A packed file. digest: SHA-256 of its bytes, hexadecimal."""

    path: Path
    digest: str
    version: str


def build(cache: Path, wheels: Path | None = None, collection: Path = COLLECTION) -> Bundle:
    """Return the bundle of a collection's tree, packing it if the cache does not hold it yet.

    Args:
        cache: folder for results and libraries; created if missing, safe to delete, safe for parallel use.
        wheels: folder with the pinned wheels; given, nothing is fetched.
        collection: root of the collection.

    Raises:
        BundleError: shiv is missing, pip fails, or the tree is not a collection.
    """
    _require_shiv()
    cache.mkdir(parents=True, exist_ok=True)
    sources = {str(path.relative_to(collection)): path.read_bytes() for path in packed_files(collection)}
    if str(REQUIREMENTS) not in sources:
        raise BundleError(f"{collection} is not this collection: it has no {REQUIREMENTS}")
    version = collection_version(collection)
    path = cache / f"kproxy-{inputs_digest(sources, version)[:16]}.pyz"
    if not path.exists():
        with _locked(cache):
            _make(cache, path, collection, sources, version, wheels)
    return Bundle(path, hashlib.sha256(path.read_bytes()).hexdigest(), version)


def _make(
    cache: Path, path: Path, collection: Path, sources: Mapping[str, bytes], version: str, wheels: Path | None
) -> None:
    # Ansible asks for the same bundle once per host, at the same time: whoever waited finds it made.
    if not path.exists():
        libraries = _libraries(cache, collection / REQUIREMENTS, wheels)
        with tempfile.TemporaryDirectory(dir=cache, prefix="staging-") as folder:
            staging = Path(folder) / "site-packages"
            shutil.copytree(libraries, staging)
            _write_tree(staging / "ansible_collections/kproxy/dataplane", sources, version)
            packed = Path(folder) / "packed.pyz"
            _pack(staging, packed)
            packed.replace(path)


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def packed_files(collection: Path) -> Iterator[Path]:
    """Yield what goes into the bundle besides libraries, in a stable order."""
    for path in sorted((collection / MODULE_UTILS).rglob("*")):
        if path.suffix in PACKED_SUFFIXES and path.is_file() and "__pycache__" not in path.parts:
            yield path


def inputs_digest(sources: Mapping[str, bytes], version: str) -> str:
    """Return a digest of everything that decides about the bundle's bytes."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(f"{version}\0{importlib.metadata.version('shiv')}\0".encode())
    for name, content in sorted(sources.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def collection_version(collection: Path) -> str:
    """Return the version of an installed collection (MANIFEST.json) or of a checkout (galaxy.yml)."""
    manifest = collection / "MANIFEST.json"
    if manifest.exists():
        return str(json.loads(manifest.read_text(encoding="utf-8"))["collection_info"]["version"])
    found = re.search(r"^version:\s*[\"']?([^\s\"']+)", (collection / "galaxy.yml").read_text(encoding="utf-8"), re.M)
    if found is None:
        raise BundleError(f"{collection / 'galaxy.yml'} names no version")
    return found.group(1)


def _require_shiv() -> None:
    try:
        importlib.metadata.version("shiv")
    except importlib.metadata.PackageNotFoundError:
        raise BundleError(
            f"packing the sidecar needs shiv in the controller's Python ({sys.executable}): {_way_to_shiv()}"
        ) from None


def _way_to_shiv() -> str:
    # pip refuses to install into a Python that the system's packages own (PEP 668), and Debian has no package of shiv.
    marker = Path(sysconfig.get_path("stdlib", sysconfig.get_default_scheme())) / "EXTERNALLY-MANAGED"
    if sys.prefix == sys.base_prefix and marker.exists():
        return (
            "that is the system's own, into which pip installs nothing, so run Ansible from a virtual environment: "
            "python3 -m venv ~/ansible && ~/ansible/bin/pip install ansible-core shiv"
        )
    return f"{sys.executable} -m pip install shiv"


def _libraries(cache: Path, requirements: Path, wheels: Path | None) -> Path:
    """Return a folder with the pinned libraries, unpacked once per content of the requirements."""
    folder = cache / f"libraries-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=cache, prefix="pip-") as work:
        target = Path(work) / "site-packages"
        offline = ["--no-index", "--find-links", str(wheels)] if wheels is not None else []
        _run(
            [
                sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile",
                "--require-hashes", *TARGET, *offline, "--target", str(target), "-r", str(requirements),
            ],
            "the sidecar's libraries cannot be installed"
            + ("" if wheels is not None else "; on a controller without a package index, give a folder of wheels"),
        )  # fmt: skip
        _strip(target)
        target.rename(folder)
    return folder


def _strip(site_packages: Path) -> None:
    """Remove what differs between machines (installer records) or fits only one (compiled accelerators)."""
    shutil.rmtree(site_packages / "bin", ignore_errors=True)
    for path in sorted(site_packages.rglob("*")):
        records = path.parent.name.endswith(".dist-info") and path.name in (
            "RECORD", "INSTALLER", "REQUESTED", "direct_url.json",
        )  # fmt: skip
        if path.suffix in (".so", ".pyc") or records:
            path.unlink()


def _write_tree(root: Path, sources: Mapping[str, bytes], version: str) -> None:
    for name, content in sources.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    (root / "VERSION").write_text(version + "\n", encoding="utf-8")


def _pack(staging: Path, output: Path) -> None:
    for path in staging.rglob("*"):
        # The archive records modes, which depend on this machine's umask.
        path.chmod(0o755 if path.is_dir() else 0o644)
    # Not compressed: zlib and its successors pack the same input into different bytes.
    _run(
        [
            sys.executable, "-m", "shiv", "--site-packages", str(staging), "--reproducible", "--uncompressed",
            "--root", UNPACK_ROOT, "--python", INTERPRETER, "--entry-point", ENTRY_POINT, "--output-file", str(output),
        ],
        "shiv cannot pack the sidecar",
        {"SOURCE_DATE_EPOCH": EPOCH},
    )  # fmt: skip
    output.chmod(0o755)


def _run(command: list[str], failure: str, environment: Mapping[str, str] | None = None) -> None:
    result = subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        last = (result.stderr or result.stdout).strip().splitlines()[-3:]
        raise BundleError(f"{failure}: {' '.join(last)}")
