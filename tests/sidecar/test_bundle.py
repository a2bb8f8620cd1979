"""The node's single file: the same bytes everywhere, and both programs run from it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from ansible_collections.kproxy.dataplane.plugins.plugin_utils import _bundle
from ansible_collections.kproxy.dataplane.plugins.plugin_utils._bundle import Bundle, BundleError, build
from devtools.conformance.netns import NetworkNamespace
from devtools.environment import CACHE
from devtools.kproxyd_process import START_SECONDS
from devtools.waiting import eventually


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return build(CACHE / "bundle")


@pytest.fixture
def programs(bundle: Bundle, tmp_path: Path) -> Path:
    """A folder with kproxyd and kproxyctl as a node has them: links to one file."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy2(bundle.path, folder / "kproxy.pyz")
    for name in ("kproxyd", "kproxyctl"):
        (folder / name).symlink_to(folder / "kproxy.pyz")
    return folder


def run(program: Path, *arguments: str, root: Path) -> subprocess.CompletedProcess[str]:
    # The node's python3 is whatever runs this test here; nothing of this environment may be needed.
    return subprocess.run(
        [sys.executable, "-I", str(program), *arguments],
        env={"PATH": os.environ["PATH"], "SHIV_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_builds_are_equal_byte_for_byte(bundle: Bundle, tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        again = build(tmp_path / "another cache", wheels=_wheels(tmp_path))
    finally:
        os.umask(old)
    assert again.path.read_bytes() == bundle.path.read_bytes()
    assert again.digest == bundle.digest


def test_the_same_inputs_are_not_packed_twice(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("packed again")

    monkeypatch.setattr(_bundle, "_run", refuse)
    assert build(CACHE / "bundle") == bundle


def test_nothing_in_it_fits_only_one_machine(bundle: Bundle) -> None:
    with zipfile.ZipFile(bundle.path) as archive:
        names = archive.namelist()
        environment = json.loads(archive.read("environment.json"))
        times = {entry.date_time for entry in archive.infolist()}
    assert [name for name in names if name.endswith((".so", ".pyc", "/RECORD", "/direct_url.json"))] == []
    assert len(times) == 1
    assert environment["entry_point"] == _bundle.ENTRY_POINT
    assert "site-packages/ansible_collections/kproxy/dataplane/plugins/module_utils/_sidecar/main.py" in names
    assert not [name for name in names if "/plugins/modules/" in name or "/tests/" in name]


def test_both_programs_run_from_it_alone(programs: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    for name in ("kproxyd", "kproxyctl"):
        shown = run(programs / name, "--help", root=root)
        assert (shown.returncode, shown.stdout.split()[:2]) == (0, ["usage:", name]), shown.stderr
        named = run(programs / "kproxy.pyz", name, "--help", root=root)
        assert named.stdout == shown.stdout
    assert run(programs / "kproxy.pyz", root=root).returncode == 2
    down = run(programs / "kproxyctl", "--socket", str(tmp_path / "none"), "status", root=root)
    assert down.returncode == 3
    assert "systemctl start kproxyd" in down.stderr


@pytest.fixture
def old_version(tmp_path: Path) -> Path:
    folder = tmp_path / "cache" / f"kproxy.pyz_{'0' * 64}"
    (folder / "site-packages").mkdir(parents=True)
    (folder.parent / f".{folder.name}_lock").touch()
    (folder.parent / "somebody-elses").mkdir()
    return folder


def test_the_daemon_runs_from_it_and_cleans_up_after_older_versions(
    programs: Path, bundle: Bundle, tmp_path: Path, old_version: Path, namespace: NetworkNamespace
) -> None:
    (tmp_path / "manifests").mkdir()
    socket = tmp_path / "socket"
    daemon = subprocess.Popen(
        [
            sys.executable, "-I", str(programs / "kproxyd"), "--source", f"manifests:{tmp_path / 'manifests'}",
            "--node-name", "n1", "--socket", str(socket), "--state-directory", str(tmp_path / "state"),
        ],
        env={"PATH": os.environ["PATH"], "SHIV_ROOT": str(old_version.parent)},
    )  # fmt: skip
    try:

        def in_step() -> bool:
            asked = run(
                programs / "kproxyctl", "--socket", str(socket), "status", "-o", "json", root=old_version.parent
            )
            return asked.returncode == 0 and json.loads(asked.stdout)["version"] == bundle.version

        eventually(in_step, "the daemon to be in step")
    finally:
        daemon.terminate()
        assert daemon.wait(START_SECONDS) == 0
    left = sorted(path.name for path in old_version.parent.iterdir() if not path.name.startswith("."))
    assert len(left) == 2, left
    assert left[1] == "somebody-elses"
    assert not old_version.exists()


@pytest.mark.parametrize(
    ("environment", "advice"),
    [
        ("a virtual environment", f"{sys.executable} -m pip install shiv"),
        ("the system's Python, into which pip installs", f"{sys.executable} -m pip install shiv"),
        ("the system's Python, guarded (PEP 668)", "~/ansible/bin/pip install ansible-core shiv"),
    ],
)
def test_a_controller_that_lacks_shiv_is_told_how_to_get_it(
    environment: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    if "into which pip installs" not in environment:
        (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    monkeypatch.setattr(sys, "prefix", "/venv" if "virtual" in environment else sys.base_prefix)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(BundleError, match=re.escape(advice)):
        build(tmp_path)


def test_a_wheel_that_is_missing_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(BundleError, match="libraries cannot be installed"):
        build(tmp_path / "cache", wheels=tmp_path / "wheels")


def _wheels(folder: Path) -> Path:
    """Return a folder with the pinned wheels, as somebody without a package index would carry it along."""
    wheels = folder / "wheels"
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--require-hashes",
            *_bundle.TARGET, "--dest", str(wheels), "-r", str(_bundle.COLLECTION / _bundle.REQUIREMENTS),
        ],
        check=True,
    )  # fmt: skip
    return wheels
