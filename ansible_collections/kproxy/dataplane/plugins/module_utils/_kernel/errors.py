# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between us and the kernel, as types that name the object."""

from __future__ import annotations

import errno
import os

from ansible_collections.kproxy.dataplane.plugins.module_utils._nftables.transaction import Key, SetName


class KernelError(Exception):
    """The kernel, or the tool that speaks to it, refused. Nothing of the refused request is in force."""


class NetlinkError(KernelError):
    """A netlink request was answered with an error number."""

    def __init__(self, action: str, code: int, detail: str = "") -> None:
        self.action = action
        self.errno = code
        self.detail = detail
        name = errno.errorcode.get(code, str(code))
        super().__init__(f"{action}: {os.strerror(code)} ({name}){': ' + detail if detail else ''}")


class ElementError(NetlinkError):
    """One element operation made its whole batch fail.

    Attributes:
        set_name: the set or map.
        operation: "add" or "delete".
        index: position in `Transaction.adds[set_name]` or `Transaction.deletes[set_name]`; None if the kernel did not
            say which element of the set it meant.
        key: that element's key, or None.
    """

    def __init__(
        self, set_name: SetName, operation: str, index: int | None, key: Key | None, code: int, detail: str = ""
    ) -> None:
        self.set_name = set_name
        self.operation = operation
        self.index = index
        self.key = key
        which = f"element {index} ({describe_key(key)})" if key is not None else "an element"
        super().__init__(f"{operation} {which} of {set_name}", code, detail)


class DumpInterrupted(KernelError):
    """The ruleset changed during every attempt to read it."""


def describe_key(key: Key) -> str:
    """Return a key as hexadecimal, ranges as first-last, and whatever is no key at all as it is."""
    if isinstance(key, bytes):
        return key.hex()
    if isinstance(key, tuple) and all(isinstance(part, bytes) for part in key):
        return "-".join(part.hex() for part in key)
    return repr(key)
