"""What the runner needs of a proxy under test."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from devtools.conformance.corpus import Case, ObjectKey, family
from devtools.conformance.facts import HttpResponse
from devtools.conformance.netns import NetworkNamespace

Manifests = Sequence[Mapping[str, Any]]


class Product(Protocol):
    """A proxy that serves one node, in that node's namespace."""

    def start(self, case: Case, node: NetworkNamespace, objects: Manifests) -> None:
        """Run with the case's settings and objects; return when they are in force."""

    def apply(self, changed: Manifests, deleted: Sequence[ObjectKey], objects: Manifests) -> None:
        """Take a batch of changes (objects: all that there are afterwards); return when they are in force."""

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        """Answer a question of the proxy's own health in a given state."""

    def stop(self) -> None:
        """End every process of it."""


class NoProduct:
    """Nothing at all: then every probe has to come out as `pass`."""

    def start(self, case: Case, node: NetworkNamespace, objects: Manifests) -> None:
        pass

    def apply(self, changed: Manifests, deleted: Sequence[ObjectKey], objects: Manifests) -> None:
        pass

    def proxy_health(self, check: Mapping[str, Any]) -> HttpResponse:
        raise NotImplementedError("nothing runs that could be healthy")

    def stop(self) -> None:
        pass


def node_port_address(case: Case, wanted: int) -> str:
    """An address of the node on which the case's settings serve NodePorts."""
    own = [ip for ip in case.node.addresses if family(ip) == wanted]
    ranges = [
        ipaddress.ip_network(text)
        for text in case.config.get("nodePortAddresses") or ()
        if "/" in text and (":" in text) == (wanted == 6)
    ]
    inside = [ip for ip in own if any(ipaddress.ip_address(ip) in network for network in ranges)]
    bind = case.config.get("bindAddress")
    if not ranges and bind and family(bind) == wanted and any(ch not in "0.:" for ch in bind):
        return str(bind)
    return (inside or own)[0]
