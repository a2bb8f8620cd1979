# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Answers to kproxyctl's questions about the service table, as JSON documents.

Each function takes its snapshot at once and returns what renders it later: rows are immutable, so rendering ten
thousand of them does not hold up the loop that owns the engine.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.explain import explain
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    DNAT,
    LOCAL,
    NODE_PORT,
    PASS,
    Frontend,
    ServicePortName,
    Target,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.notes import notes_of
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import Packet, simulate
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import (
    AddressError,
    family_of,
    format_address,
    format_socket_address,
    parse_address,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES, NUMBERS
from ansible_collections.kproxy.dataplane.plugins.module_utils._selection.categorize import Endpoint
from ansible_collections.kproxy.dataplane.plugins.module_utils._sidecar.control import QuestionError, Render

ICMP = {4: 1, 6: 58}
# Names that one message suggests, and namespaces that it lists.
_SUGGESTED = 3
_SHOWN_NAMESPACES = 10


def services(table: ServiceTable, namespace: str = "") -> Render:
    """Return one document per frontend, in the order of Services and addresses.

    Raises QuestionError for a namespace without a Service.
    """
    if namespace:
        _check_namespace(table, namespace)
    rows = [row for row in table.frontends.values() if not namespace or row.service_port.namespace == namespace]
    return lambda: [frontend_document(row) for row in _ordered(rows)]


def backends(table: ServiceTable, namespace: str = "", service: str = "") -> Render:
    """Return one document per service port, family and endpoint that some client can reach here.

    Raises QuestionError for a Service that is unknown.
    """
    if service and (namespace, service) not in table.store.services:
        raise unknown_service(table, namespace, service)
    rows = [
        row
        for row in table.frontends.values()
        if (not namespace or row.service_port.namespace == namespace)
        and (not service or row.service_port.name == service)
    ]
    return lambda: _backend_documents(_ordered(rows))


def show(table: ServiceTable, namespace: str, service: str, most_endpoints: int = sys.maxsize) -> Render:
    """Return everything about one Service. Raises QuestionError if it is unknown."""
    key = (namespace, service)
    known = table.store.services.get(key)
    if known is None:
        raise unknown_service(table, namespace, service)
    canary = table.config.canary
    if canary is not None and not canary.chooses(known):
        raise QuestionError(f"Service {namespace}/{service} is kube-proxy's on this node; ours are {canary}")
    rows = table.frontends_of(key)
    slices = table.store.slices_of(key)
    noted = list(notes_of(table, key, most_endpoints))
    waiting = [str(conflict) for conflict in table.conflicts if conflict.loser == key]

    def render() -> dict[str, Any]:
        return {
            "namespace": namespace,
            "name": service,
            "internalTrafficPolicy": "Local" if known.internal_local else "Cluster",
            "externalTrafficPolicy": "Local" if known.external_local else "Cluster",
            "healthCheckNodePort": known.health_check_node_port or None,
            "frontends": [frontend_document(row) for row in _ordered(rows)],
            "backends": _backend_documents(_ordered(rows)),
            "endpointSlices": [piece.name for piece in slices],
            "notes": [*noted, *waiting],
        }

    return render


def unknown_service(table: ServiceTable, namespace: str, service: str) -> QuestionError:
    """Return what to say of a Service that is not there, with the ones that may be meant."""
    known = table.store.services
    meant = [key for key in known if key[1] == service]
    if not meant:
        here = [name for space, name in known if space == namespace]
        meant = [(namespace, name) for name in difflib.get_close_matches(service, here, _SUGGESTED)]
    advice = "kproxyctl services lists those that are"
    if meant:
        advice = "did you mean " + " or ".join("/".join(key) for key in sorted(meant)[:_SUGGESTED]) + "?"
    return QuestionError(f"Service {namespace}/{service} is not known here; {advice}")


def _check_namespace(table: ServiceTable, namespace: str) -> None:
    known = {space for space, _name in table.store.services}
    if known and namespace not in known:
        near = difflib.get_close_matches(namespace, known, 1)
        advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known)[:_SHOWN_NAMESPACES])}"
        raise QuestionError(f"no Service of namespace {namespace} is known here; {advice}")


def trace(table: ServiceTable, arguments: Mapping[str, Any], local_addresses: Collection[bytes]) -> Render:
    """Return what the table does to one packet. Raises QuestionError for a packet that makes no sense."""
    packet = _packet(arguments)
    outcome = simulate(table, packet, local_addresses)
    steps = explain(table, packet, outcome, local_addresses)

    def render() -> dict[str, Any]:
        return {
            "verdict": outcome.verdict,
            "reason": outcome.reason,
            "steps": steps,
            "service": str(outcome.frontend.service_port) if outcome.frontend else None,
            "frontend": str(outcome.frontend.key) if outcome.frontend else None,
            "endpoints": [
                {
                    "address": format_socket_address(endpoint.ip, endpoint.port),
                    "local": endpoint.local,
                    "masqueraded": endpoint in outcome.masqueraded,
                }
                for endpoint in outcome.endpoints
            ],
        }

    return render


def frontend_document(row: Frontend) -> dict[str, Any]:
    """Return one row of the service table for people and programs."""
    document: dict[str, Any] = {
        "service": f"{row.service_port.namespace}/{row.service_port.name}",
        "port": row.service_port.port,
        "protocol": NAMES[row.key.protocol],
        "kind": row.kind,
        "family": f"IPv{row.key.family}",
        "address": format_address(row.key.ip) if row.key.ip else "",
        "portNumber": row.key.port,
        "outsiders": _target(row, row.outsiders),
        "pods": _target(row, row.pods),
        "node": _target(row, row.node),
        "endpoints": len(row.cluster_endpoints or row.local_endpoints),
        "localEndpoints": len(row.node_endpoints),
        "affinitySeconds": row.affinity_seconds,
    }
    if row.source_ranges is not None:
        document["sourceRanges"] = [
            f"{format_address(first)}-{format_address(last)}" for first, last in row.source_ranges
        ]
    if row.kind == NODE_PORT and row.loopback != PASS:
        document["loopback"] = row.loopback
    return document


def _target(row: Frontend, target: Target) -> dict[str, Any]:
    if target.verdict != DNAT:
        return {"verdict": target.verdict}
    return {
        "verdict": DNAT,
        "endpointSet": target.endpoint_set,
        "endpoints": len(row.endpoints(target)),
        "masquerade": target.masquerade,
    }


def _backend_documents(rows: Iterable[Frontend]) -> list[dict[str, Any]]:
    found: dict[tuple[ServicePortName, int, Endpoint], set[str]] = {}
    for row in rows:
        for target in (row.outsiders, row.pods, row.node):
            if target.verdict == DNAT:
                for endpoint in row.endpoints(target):
                    sets = found.setdefault((row.service_port, row.key.family, endpoint), set())
                    sets.add("local" if target.endpoint_set == LOCAL else "cluster")
    return [
        {
            "service": f"{name.namespace}/{name.name}",
            "port": name.port,
            "protocol": NAMES[name.protocol],
            "endpoint": format_socket_address(endpoint.ip, endpoint.port),
            "local": endpoint.local,
            "sets": sorted(sets),
        }
        for (name, _family, endpoint), sets in found.items()
    ]


def _ordered(rows: Iterable[Frontend]) -> list[Frontend]:
    return sorted(rows, key=lambda row: (row.service_port, row.kind, row.key))


def _packet(arguments: Mapping[str, Any]) -> Packet:
    try:
        source = parse_address(str(arguments.get("from", "")))
        destination = parse_address(str(arguments.get("to", "")))
    except AddressError as error:
        raise QuestionError(
            f"{error}; a trace needs addresses for --from and --to, and kproxyctl services shows those of Services"
        ) from None
    if family_of(source) != family_of(destination):
        raise QuestionError("--from and --to are of different address families")
    name = str(arguments.get("protocol", "TCP")).upper()
    protocol = ICMP[family_of(destination)] if name == "ICMP" else NUMBERS.get(name)
    if protocol is None:
        raise QuestionError(f"protocol {name} is none of TCP, UDP, SCTP, ICMP")
    port = arguments.get("port", 0)
    if not isinstance(port, int) or not 0 <= port <= 65535 or (name != "ICMP" and port == 0):
        said = f"port {port!r} is not a number from 1 to 65535" if port else "the port that is dialled is missing"
        raise QuestionError(f"{said}; give it by --port")
    return Packet(source, destination, protocol, port, str(arguments.get("interface", "")))
