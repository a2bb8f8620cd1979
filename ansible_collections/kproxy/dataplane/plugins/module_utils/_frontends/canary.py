# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Which Services are ours on a node whose kube-proxy still serves all the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.label_selector import (
    Requirement,
    SelectorError,
    parse_selector,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service

KEYS = ("selector", "namespaces", "services")

_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SERVICE = re.compile(rf"{_NAMESPACE.pattern}/{_NAMESPACE.pattern}")


class CanaryError(ValueError):
    """A choice of Services that cannot be used; the message names the key and says what would do."""


class Canary(NamedTuple):
    """A choice of Services.

    Chosen is what `services` names, and what meets `selector` in one of `namespaces`, as with kubectl's -l and -n: an
    empty one of the two does not narrow the other.
    """

    selector: tuple[Requirement, ...]
    namespaces: frozenset[str]
    services: frozenset[tuple[str, str]]
    text: str

    def chooses(self, service: Service) -> bool:
        """Whether a Service is ours."""
        if (service.namespace, service.name) in self.services:
            return True
        if not self.selector and not self.namespaces:
            return False
        return (not self.namespaces or service.namespace in self.namespaces) and all(
            requirement.holds(service.labels) for requirement in self.selector
        )

    def __str__(self) -> str:
        """Return the choice for people."""
        return self.text


def parse_canary(value: Any) -> Canary | None:
    """Return the choice of a mapping with the keys `selector`, `namespaces` and `services`; None for none at all.

    Raises CanaryError. A mapping that chooses nothing is an error: nobody means that, and who leaves out a variable by
    mistake must not be left with a node on which nothing, or everything, is ours.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise CanaryError("canary must be a mapping with %s" % " or ".join(KEYS))
    unknown = sorted(set(map(str, value)) - set(KEYS))
    if unknown:
        raise CanaryError("canary.%s is not known; known are %s" % (unknown[0], ", ".join(KEYS)))
    given = value.get("selector") or ""
    if not isinstance(given, str):
        raise CanaryError("canary.selector must be text such as app=web, not %r" % (given,))
    try:
        selector = parse_selector(given)
    except SelectorError as error:
        raise CanaryError("canary.selector: %s" % error) from None
    namespaces = _names(value, "namespaces", _NAMESPACE, "the name of a namespace")
    services = _names(value, "services", _SERVICE, "NAMESPACE/NAME of a Service")
    if not (selector or namespaces or services):
        raise CanaryError("canary chooses no Service: give it %s" % " or ".join(KEYS))
    words = [
        *(["selector %s" % given.strip()] if selector else []),
        *(["namespaces %s" % ", ".join(namespaces)] if namespaces else []),
        *(["services %s" % ", ".join(services)] if services else []),
    ]
    pairs = frozenset((name.partition("/")[0], name.partition("/")[2]) for name in services)
    return Canary(selector, frozenset(namespaces), pairs, "; ".join(words))


def _names(values: Mapping[str, Any], key: str, pattern: re.Pattern[str], what: str) -> list[str]:
    given = values.get(key) or []
    if not isinstance(given, (list, tuple)):
        raise CanaryError("canary.%s must be a list, not %r" % (key, given))
    for name in given:
        if not isinstance(name, str) or not pattern.fullmatch(name):
            raise CanaryError("canary.%s: %r is not %s" % (key, name, what))
    return list(given)
