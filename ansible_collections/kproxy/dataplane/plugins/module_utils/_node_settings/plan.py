# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What has to change on a node so that it has the wanted settings, or has its own back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_FORMAT = 1
_MODULE_OF_SYSCTLS = {"net.netfilter.nf_conntrack_": "nf_conntrack", "net.bridge.": "br_netfilter"}


class LedgerError(ValueError):
    """The record of earlier settings cannot be understood, so nothing can be put back safely."""


@dataclass(frozen=True)
class Ledger:
    """What was set for the dataplane (``set``), over which values (``before``), and the modules to load at boot."""

    set: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()

    def dump(self) -> str:
        """Return the text that ``load`` reads."""
        document = {
            "format": _FORMAT,
            "set": dict(self.set),
            "before": dict(self.before),
            "modules": list(self.modules),
        }
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def load(cls, text: str) -> Ledger:
        """Read a record; an empty text is an empty record. Raises LedgerError."""
        if not text.strip():
            return cls()
        try:
            document = json.loads(text)
            if document["format"] != _FORMAT:
                raise LedgerError(
                    f"the record of settings has format {document['format']!r}, this version knows {_FORMAT}"
                )
            return cls(dict(document["set"]), dict(document["before"]), tuple(document["modules"]))
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"the record of settings cannot be read: {error}") from error


@dataclass(frozen=True)
class Plan:
    """The values to write now, the modules to load now, and the record as it will be."""

    write: Mapping[str, str]
    load: tuple[str, ...]
    ledger: Ledger
    changed: bool


def normal(value: str) -> str:
    """Return a sysctl value as it compares: the kernel separates by tabs what people separate by blanks."""
    return " ".join(value.split())


def modules_behind(sysctls: Iterable[str]) -> list[str]:
    """Return the modules that bring these sysctls.

    Until such a module is loaded its sysctls do not exist, and what a boot would set of them is lost: sysctls are set
    once, after the modules of modules-load.d and long before the first rule or bridge (systemd-sysctl.service(8)).
    """
    return sorted(
        {module for name in sysctls for prefix, module in _MODULE_OF_SYSCTLS.items() if name.startswith(prefix)}
    )


def apply(
    ledger: Ledger,
    current: Mapping[str, str],
    loaded: Iterable[str],
    sysctls: Mapping[str, Any],
    modules: Iterable[str],
) -> Plan:
    """Return what gives the node the wanted settings, next to those it was given earlier.

    ``current`` holds the present values of the wanted sysctls that exist.
    """
    wanted = {name: normal(str(value)) for name, value in sysctls.items()}
    write = {name: value for name, value in wanted.items() if normal(current.get(name, "")) != value}
    before = dict(ledger.before)
    for name in wanted:
        if name not in ledger.set and name in current:
            before[name] = normal(current[name])
    all_modules = tuple(sorted({*ledger.modules, *modules}))
    present = frozenset(loaded)
    load = tuple(module for module in sorted(set(modules)) if module not in present)
    after = Ledger({**ledger.set, **wanted}, before, all_modules)
    return Plan(write, load, after, bool(write or load or after != ledger))


def without(ledger: Ledger, earlier: Ledger, refused: Iterable[str]) -> Ledger:
    """Return a record in which the refused sysctls and modules stand as in an earlier one, or not at all.

    Of a restoration that is what still waits to be put back.
    """
    names = frozenset(refused)

    def merged(now: Mapping[str, str], then: Mapping[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in now.items() if name not in names}
        return {**kept, **{name: value for name, value in then.items() if name in names}}

    modules = tuple(name for name in ledger.modules if name not in names or name in earlier.modules)
    return Ledger(merged(ledger.set, earlier.set), merged(ledger.before, earlier.before), modules)


def mistakes(sysctls: Mapping[str, Any], current: Mapping[str, str], load: Iterable[str]) -> list[str]:
    """Return one sentence for every wanted sysctl that cannot be meant so.

    current: the present values of those that exist. load: modules that are to be loaded, which may bring further ones.
    """
    found = [f"sysctl {name} is {value}; write 1 or 0" for name, value in sysctls.items() if isinstance(value, bool)]
    if not list(load):
        found += [
            f"this kernel has no sysctl {name}; is it spelt right?"
            for name in sysctls
            if name not in current and not modules_behind([name])
        ]
    return found


def restore(ledger: Ledger, current: Mapping[str, str]) -> Plan:
    """Return what puts back the values from before; a value that somebody changed since is left as it is."""
    write = {
        name: value
        for name, value in ledger.before.items()
        if name in current and normal(current[name]) == ledger.set.get(name) and normal(current[name]) != value
    }
    return Plan(write, (), Ledger(), ledger != Ledger())


def sysctl_file(ledger: Ledger) -> str:
    """Return the text of the file that sets the values at boot; empty if there is none to set."""
    lines = [f"{name} = {value}\n" for name, value in sorted(ledger.set.items())]
    return (
        "# Set by kproxy.dataplane; the values from before are kept in its record of settings.\n" + "".join(lines)
        if lines
        else ""
    )


def modules_file(ledger: Ledger) -> str:
    """Return the text of the file that loads the modules at boot; empty if there is none to load."""
    return "# Needed by kproxy.dataplane.\n" + "".join(f"{name}\n" for name in ledger.modules) if ledger.modules else ""
