# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""The files that make up the sidecar on a node, and which of them are not as they should be."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar import unit
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.settings import API_VERSION, from_mapping

# Both programs are the bundle; it tells them apart by the name it is called by.
LINKS = (unit.DAEMON_LINK, unit.CLI_LINK)

# What removing the sidecar removes. The state directory goes with the node's settings, whose record is in it.
REMOVED = (unit.UNIT_PATH, *LINKS, unit.BUNDLE_PATH, unit.CONFIG_PATH, unit.CACHE_DIRECTORY)


_BUNDLE_MODE = 0o755
# User and group of everything that root runs.
_OWNER = (0, 0)


class TextFile(NamedTuple):
    """A file whose whole content is known."""

    path: str
    text: str
    mode: int


class Rights(NamedTuple):
    """A file with other rights than it should have; ``before`` and ``after`` name owner, group and mode."""

    path: str
    mode: int
    before: str
    after: str


def configuration(options: Mapping[str, Any], node_name: str) -> TextFile:
    """Return kproxyd's configuration file. Raises SettingsError if kproxyd would refuse it."""
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "KubeProxyConfiguration",
        **options["config"],
        "mode": options["backend"],
        "hostnameOverride": node_name,
        "kproxy": {**options["settings"], "source": options["source"]},
    }
    document.pop("nodeName", None)
    if options.get("kubeconfig"):
        document["clientConnection"] = {**document.get("clientConnection", {}), "kubeconfig": options["kubeconfig"]}
    from_mapping(document, {})
    return TextFile(unit.CONFIG_PATH, json.dumps(document, indent=2, sort_keys=True) + "\n", 0o640)


def unit_file(backend: str, systemd_version: int) -> TextFile:
    """Return the systemd unit."""
    options = unit.UnitOptions(backend=backend, systemd_version=systemd_version)
    return TextFile(unit.UNIT_PATH, unit.render(options), 0o644)


def current_text(path: str) -> str | None:
    """Return a file's text, None if there is no such file."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def loose(wanted: Iterable[TextFile]) -> list[Rights]:
    """Return those of the files, and the bundle, that are there with another owner, group or mode than they were given.

    Root runs or believes all of them, so whoever may write one of them is root.
    """
    found = []
    for path, mode in [*((file.path, file.mode) for file in wanted), (unit.BUNDLE_PATH, _BUNDLE_MODE)]:
        try:
            state = os.stat(path)
        except FileNotFoundError:
            continue
        before, after = (
            f"{owner}:{group} {bits:04o}"
            for owner, group, bits in ((state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode)), (*_OWNER, mode))
        )
        if before != after:
            found.append(Rights(path, mode, before, after))
    return found


def tighten(found: Iterable[Rights]) -> None:
    """Give files the rights they should have."""
    for rights in found:
        os.chown(rights.path, *_OWNER)
        os.chmod(rights.path, rights.mode)


def digest_of(path: str) -> str:
    """Return the SHA-256 of a file, empty if there is no such file."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except FileNotFoundError:
        return ""
    return digest.hexdigest()


def last_written() -> float:
    """Return when what kproxyd reads at its start was last written, in seconds of the epoch; 0 if nothing is there.

    What lies in the future was written before the clock was set back, and says nothing.
    """
    paths = (unit.UNIT_PATH, unit.BUNDLE_PATH, unit.CONFIG_PATH)
    written = [os.stat(path).st_mtime for path in paths if os.path.exists(path)]
    return max((moment for moment in written if moment <= time.time()), default=0.0)


def links_right() -> bool:
    """Whether both programs lead to the bundle."""
    return all(os.path.islink(link) and os.readlink(link) == unit.BUNDLE_PATH for link in LINKS)


def write(file: TextFile) -> None:
    """Write a file in one step; nobody ever sees half of it, nor sees it with more rights than it should have."""
    os.makedirs(os.path.dirname(file.path), mode=0o755, exist_ok=True)
    draft = f"{file.path}.new"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, file.mode)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(file.text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(draft, file.mode)
    os.replace(draft, file.path)


def install_bundle(source: str) -> None:
    """Put the bundle in its place in one step; a running kproxyd keeps the one it was started from.

    It is on the disk before it has the name: else a power cut may leave an empty file there.
    """
    os.makedirs(os.path.dirname(unit.BUNDLE_PATH), mode=0o755, exist_ok=True)
    draft = f"{unit.BUNDLE_PATH}.new"
    with open(source, "rb") as delivered, open(draft, "wb") as stream:
        shutil.copyfileobj(delivered, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(draft, _BUNDLE_MODE)
    os.replace(draft, unit.BUNDLE_PATH)


def make_links() -> None:
    """Lead both programs to the bundle."""
    for link in LINKS:
        os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
        draft = f"{link}.new"
        if os.path.lexists(draft):
            os.unlink(draft)
        os.symlink(unit.BUNDLE_PATH, draft)
        os.replace(draft, link)


def present() -> list[str]:
    """Return those of the sidecar's files that exist."""
    return [path for path in REMOVED if os.path.lexists(path)]


def remove() -> None:
    """Remove everything the sidecar brought, and the folder of the bundle if nothing else is in it."""
    for path in present():
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    folder = os.path.dirname(unit.BUNDLE_PATH)
    if os.path.isdir(folder) and not os.listdir(folder):
        os.rmdir(folder)
