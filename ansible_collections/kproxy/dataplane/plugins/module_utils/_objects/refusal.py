# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""What is said about an object that cannot be used, or not wholly."""

from __future__ import annotations


class Refusal(Exception):
    """One object is not usable; everything else goes on without it.

    The message names the object, the field and the reason, so that it can stand alone in a log.
    """

    def __init__(self, kind: str, namespace: str, name: str, reason: str) -> None:
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.reason = reason
        super().__init__("%s %s: %s" % (kind, "%s/%s" % (namespace, name) if namespace else name, reason))

    @property
    def identity(self) -> tuple[str, str, str]:
        """Return kind, namespace and name."""
        return self.kind, self.namespace, self.name
