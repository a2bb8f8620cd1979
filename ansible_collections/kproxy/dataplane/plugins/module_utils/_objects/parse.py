# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""From a manifest (a decoded JSON or YAML document) to a typed object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Union

from ansible_collections.kproxy.dataplane.plugins.module_utils._objects import fields
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import AddressError
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpoints import ENDPOINTS, check_mirrored
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.endpointslice import (
    EndpointSlice,
    parse_endpointslice,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.node import Node, parse_node
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.refusal import Refusal
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.service import Service, parse_service
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.servicecidr import (
    ServiceCIDR,
    parse_servicecidr,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.shown import shown

ApiObject = Union[Service, EndpointSlice, Node, ServiceCIDR]

_VERSIONS = {
    "Service": "v1",
    "Node": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
    "ServiceCIDR": "networking.k8s.io/v1",
}
_GROUPS = {kind: version.split("/", 1)[0] for kind, version in _VERSIONS.items()}
_SPELLINGS = {kind.lower(): kind for kind in _VERSIONS}


class Upsert(NamedTuple):
    """An object is there, new or changed."""

    obj: ApiObject


class Delete(NamedTuple):
    """An object is gone, or is no longer usable. kind is the API kind, namespace is empty for cluster-wide kinds."""

    kind: str
    namespace: str
    name: str


Change = Union[Upsert, Delete]


def kind_of(obj: ApiObject) -> str:
    """Return the API kind of a typed object."""
    return type(obj).__name__


def identity(manifest: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return (kind, namespace, name) of a manifest as far as it can be told; parts that cannot be told are empty."""
    metadata = manifest.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    kind = _word(manifest.get("kind"))
    namespace = _word(named.get("namespace"))
    if not namespace and kind in ("Service", "EndpointSlice", ENDPOINTS):
        namespace = "default"
    return kind, namespace, _word(named.get("name"))


def without_others_content(document: Any) -> Any:
    """Return a document in which nothing but their names is left of objects that are none of the proxy's business.

    Such as a Secret beside its Service, whose content would else go wherever the document does.
    """
    manifests = [_named(one) if isinstance(one, Mapping) and _is_others(one) else one for one in expand(document)]
    alone = len(manifests) == 1 and isinstance(manifests[0], Mapping)
    return manifests[0] if alone else {"apiVersion": "v1", "kind": "List", "items": manifests}


def _is_others(manifest: Mapping[str, Any]) -> bool:
    # Those of our names in somebody else's group are passed over by what they say, and hold no Secret.
    return str(manifest.get("kind")).lower() not in {*_SPELLINGS, ENDPOINTS.lower()}


def _named(manifest: Mapping[str, Any]) -> dict[str, Any]:
    _kind, namespace, name = identity(manifest)
    told = {key: manifest[key] for key in ("apiVersion", "kind") if key in manifest}
    return {**told, "metadata": {"namespace": namespace, "name": name}}


def _word(value: Any) -> str:
    """Return a text that identifies, or something short and printable in the place of what is none."""
    if not value:
        return ""
    fits = isinstance(value, str) and len(value) <= fields.MAX_NAME_LENGTH and value.isprintable()
    return value if fits else shown(value)


def parse(manifest: Mapping[str, Any]) -> ApiObject | None:
    """Return the typed object of a manifest, or None for a kind that is not the proxy's business.

    Unknown fields are ignored. Raises Refusal for an object that cannot be used.
    """
    if not isinstance(manifest, Mapping):
        advice = ": separate the objects by --- or put them under items of a List" * isinstance(manifest, list)
        raise Refusal("document", "", "?", "is not an object but %s%s" % (type(manifest).__name__, advice))
    kind, namespace, name = identity(manifest)
    group = _GROUPS.get(kind)
    version = manifest.get("apiVersion") or group or ""
    if group is None or not isinstance(version, str) or version.split("/", 1)[0] != group:
        if not kind:
            raise Refusal("document", namespace, name or "?", "has no kind")
        _refuse_mistaken(kind, namespace, name, version)
        if kind == ENDPOINTS and version in ("", "v1"):
            check_mirrored(manifest, namespace, name or "?")
        return None
    try:
        return _parse_kind(kind, namespace, name, manifest)
    except (fields.FieldError, AddressError) as error:
        raise Refusal(kind, namespace, name or "?", str(error)) from None


def _refuse_mistaken(kind: str, namespace: str, name: str, version: object) -> None:
    """Refuse what can only be meant as a kind of ours; other people's kinds may have our names in their own groups."""
    meant = _SPELLINGS.get(kind.lower())
    if meant is None:
        return
    if kind != meant:
        raise Refusal(kind, namespace, name or "?", "has no such kind: write kind: %s" % meant)
    if not isinstance(version, str) or "/" not in version:
        raise Refusal(
            kind, namespace, name or "?", "has apiVersion %s: write apiVersion: %s" % (shown(version), _VERSIONS[kind])
        )


def _parse_kind(kind: str, namespace: str, name: str, manifest: Mapping[str, Any]) -> ApiObject:
    metadata = fields.mapping(manifest, "metadata", "metadata")
    fields.name(metadata, "namespace", "metadata.namespace")
    if not fields.name(metadata, "name", "metadata.name"):
        raise fields.FieldError("metadata.name is missing")
    if kind == "Service":
        return parse_service(manifest, metadata, namespace, name)
    if kind == "EndpointSlice":
        return parse_endpointslice(manifest, metadata, namespace, name)
    if kind == "Node":
        return parse_node(manifest, metadata, name)
    return parse_servicecidr(manifest, name)


def expand(document: Any) -> Iterator[Any]:
    """Yield the manifests of a document: the items of a List kind, or the document itself; nothing for an empty one.

    Items of a typed list (ServiceList) carry neither kind nor apiVersion; they get those of their list.
    """
    waiting = [document]  # the next one last: lists may lie in lists deeper than Python can recurse
    while waiting:
        document = waiting.pop()
        if document is None:
            continue
        kind, items = (document.get("kind"), document.get("items")) if isinstance(document, Mapping) else (None, None)
        if not isinstance(kind, str) or not kind.endswith("List") or not isinstance(items, list):
            yield document
            continue
        for item in reversed(items):
            if isinstance(item, Mapping) and kind != "List" and "kind" not in item:
                waiting.append({"apiVersion": document.get("apiVersion"), "kind": kind[: -len("List")], **item})
            else:
                waiting.append(item)
