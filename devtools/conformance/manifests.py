"""What a case tells the product: its settings and the objects of the API server, this node's own included."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Change, Upsert, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from devtools.conformance.corpus import Case, Manifest, NodeFacts, ObjectKey, Scope, object_key

ZONE_LABEL = "topology.kubernetes.io/zone"


def settings(case: Case) -> dict[str, Any]:
    """The case's settings in KubeProxyConfiguration's names."""
    config = case.config
    values: dict[str, Any] = {"nodeName": case.node.name}
    for key in ("detectLocalMode", "clusterCIDR", "nodePortAddresses", "masqueradeAll", "bindAddress", "featureGates"):
        if key in config:
            values[key] = config[key]
    detect = {key: config[key] for key in ("bridgeInterface", "interfaceNamePrefix") if key in config}
    if detect:
        values["detectLocal"] = detect
    return values


def node_manifest(facts: NodeFacts, given: Manifest | None = None) -> dict[str, Any]:
    """The Node object of the node under test; a given one overrides zone and labels and keeps what else it says."""
    manifest: dict[str, Any] = copy.deepcopy(dict(given)) if given is not None else {"apiVersion": "v1", "kind": "Node"}
    metadata = manifest.setdefault("metadata", {})
    metadata["name"] = facts.name
    if given is None:
        metadata["labels"] = dict(facts.labels) | ({ZONE_LABEL: facts.zone} if facts.zone else {})
    spec = manifest.setdefault("spec", {})
    if facts.pod_cidrs and "podCIDRs" not in spec and "podCIDR" not in spec:
        spec |= {"podCIDR": facts.pod_cidrs[0], "podCIDRs": list(facts.pod_cidrs)}
    status = manifest.setdefault("status", {})
    status.setdefault("addresses", [{"type": "InternalIP", "address": ip} for ip in facts.primary])
    return manifest


def changes(manifests: Iterable[Manifest]) -> list[Change]:
    """The manifests as the product's typed changes; what it refuses, it refuses."""
    found: list[Change] = []
    for manifest in manifests:
        # A refused object changes nothing: its last good version stays.
        with contextlib.suppress(Refusal):
            parsed = parse(manifest)
            if parsed is not None:
                found.append(Upsert(parsed))
    return found


class ApiState:
    """The objects that the API server holds, step by step."""

    def __init__(self, case: Case) -> None:
        self._node = case.node
        own = node_manifest(case.node)
        self.objects: dict[ObjectKey, Mapping[str, Any]] = {object_key(own): own}

    def apply(self, scope: Scope) -> tuple[list[Mapping[str, Any]], list[ObjectKey]]:
        """Take a step; return the objects that are new or changed, and the keys of those that are gone."""
        changed = []
        for manifest in scope.changed:
            key = object_key(manifest)
            if key == ("Node", "", self._node.name):
                manifest = node_manifest(self._node, manifest)
            self.objects[key] = manifest
            changed.append(manifest)
        for key in scope.deleted:
            self.objects.pop(key, None)
        return changed, list(scope.deleted)
