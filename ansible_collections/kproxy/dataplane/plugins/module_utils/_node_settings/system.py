# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Reading and writing what a plan of node settings is about: /proc/sys, loaded modules, files under a root."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

SYSCTL_FILE = "/etc/sysctl.d/60-kproxy.conf"
MODULES_FILE = "/etc/modules-load.d/kproxy.conf"
LEDGER_FILE = "/var/lib/kproxy/settings.json"

_SYSCTL_NAME = re.compile(r"[A-Za-z0-9_.\-]+(?:/[A-Za-z0-9_.\-]+)*")


class SettingError(Exception):
    """A setting cannot be read or written; the message names it."""


def sysctl_path(name: str, proc: str = "/proc/sys") -> str:
    """Return where a sysctl lives. Raises SettingError for what is no sysctl name."""
    if not _SYSCTL_NAME.fullmatch(name) or ".." in name:
        raise SettingError(f"{name!r} is not the name of a sysctl such as net.ipv4.ip_forward")
    # As with sysctl(8), a slash stands for a dot inside a component: net.ipv4.conf.eth0/100.rp_filter.
    return os.path.join(proc, name.translate(str.maketrans("./", "/.")))


def read_sysctls(names: Iterable[str], proc: str = "/proc/sys") -> dict[str, str]:
    """Return the present values; a sysctl that this kernel does not have is left out."""
    values = {}
    for name in names:
        try:
            with open(sysctl_path(name, proc), encoding="utf-8") as stream:
                values[name] = stream.read().strip()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SettingError(f"sysctl {name} cannot be read: {error.strerror}") from error
    return values


def write_sysctl(name: str, value: str, proc: str = "/proc/sys") -> None:
    """Set one value. Raises SettingError."""
    try:
        with open(sysctl_path(name, proc), "w", encoding="utf-8") as stream:
            stream.write(value)
    except OSError as error:
        raise SettingError(f"sysctl {name} cannot be set to {value!r} on this node: {error.strerror}") from error


def loaded_modules(names: Iterable[str], sys: str = "/sys/module") -> set[str]:
    """Return those of the modules that are loaded or built in."""
    return {name for name in names if os.path.isdir(os.path.join(sys, name.replace("-", "_")))}


def has_modules(folder: str = "/lib/modules") -> bool:
    """Tell whether modules of the running kernel are installed here; a container has none and loads none."""
    return os.path.isdir(os.path.join(folder, os.uname().release))


def read_text(path: str) -> str:
    """Return a file's text, empty if there is no such file."""
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write_text(path: str, text: str) -> None:
    """Write a file in one step, or remove it if the text is empty. The folder is made when it is missing."""
    if not text:
        if os.path.exists(path):
            os.unlink(path)
        return
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    draft = f"{path}.new"
    with open(draft, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(draft, 0o644)
    os.replace(draft, path)
