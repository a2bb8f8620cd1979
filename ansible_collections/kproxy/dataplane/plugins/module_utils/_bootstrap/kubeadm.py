# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""kubeadm configuration without kube-proxy, for init, for upgrade, and as stored in the cluster.

kubeadm forgets `--skip-phases` after init, so a later upgrade brings kube-proxy back (kubeadm#3137). It has to be
written down in three places: skipPhases of InitConfiguration, `proxy.disabled` of ClusterConfiguration (v1beta4) and
skipPhases of UpgradeConfiguration. v1beta3 has only the first. Everything else in a document stays as it was.

What keeps kube-proxy away at an upgrade depends on the kubeadm that does it: up to 1.31 that its ConfigMap is absent
(kubernetes#89593), and `upgrade apply` has no phases to skip; from 1.32 on skipPhases; from 1.32.1 on `proxy.disabled`
as well (kubernetes#129429).
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

GROUP = "kubeadm.k8s.io"
V1BETA4 = f"{GROUP}/v1beta4"
V1BETA3 = f"{GROUP}/v1beta3"
PROXY_PHASE = "addon/kube-proxy"
KINDS = (
    "InitConfiguration", "ClusterConfiguration", "JoinConfiguration", "ResetConfiguration", "UpgradeConfiguration",
)  # fmt: skip

_FORGETFUL = (
    "kubeadm v1beta3 does not store that kube-proxy is skipped: pass --skip-phases=addon/kube-proxy again at every"
    " kubeadm upgrade from 1.32 on (older ones have no such option, and leave kube-proxy out while the ConfigMap"
    " kube-system/kube-proxy is absent), or move to v1beta4 (Kubernetes 1.31)"
)
_DROPPED = "the KubeProxyConfiguration document was dropped: there is no kube-proxy to configure"


class KubeadmError(ValueError):
    """Documents that cannot be amended; the message says which and what to do."""


class Amended(NamedTuple):
    documents: list[dict[str, Any]]
    warnings: tuple[str, ...]


def _with_phase(document: dict[str, Any], *path: str) -> dict[str, Any]:
    """Add the phase to the list of skipped ones under `path`, once."""
    holder = document
    for name in path:
        holder[name] = holder.get(name) or {}  # a key without a value is null
        holder = holder[name]
        if not isinstance(holder, dict):
            raise KubeadmError(f"{document.get('kind')}.{name} is {holder!r}; kubeadm takes fields of its own there")
    phases = holder.get("skipPhases") or []
    if not isinstance(phases, list):
        field = ".".join((str(document.get("kind")), *path, "skipPhases"))
        raise KubeadmError(f"{field} is {phases!r}; write it as a list, such as [{PROXY_PHASE}]")
    holder["skipPhases"] = phases if PROXY_PHASE in phases else [*phases, PROXY_PHASE]
    return document


def _version(documents: Iterable[Mapping[str, Any]]) -> str:
    versions = {str(item.get("apiVersion")) for item in documents if str(item.get("apiVersion", "")).startswith(GROUP)}
    if not versions:
        raise KubeadmError("there is no kubeadm document; give at least an InitConfiguration")
    if len(versions) > 1:
        raise KubeadmError(f"kubeadm documents of several versions ({', '.join(sorted(versions))}); use one")
    (version,) = versions
    if version not in (V1BETA3, V1BETA4):
        raise KubeadmError(f"{version} is not supported; write the documents as {V1BETA4} or {V1BETA3}")
    return version


def amend(documents: Iterable[Mapping[str, Any]]) -> Amended:
    """Return the documents for `kubeadm init --config` or `kubeadm upgrade --config` without kube-proxy.

    Missing documents are added after the last one, so that nothing is left to a default that brings kube-proxy.
    Raises KubeadmError when there is no kubeadm document, when versions are mixed or not known, or a kind is misspelt.
    """
    originals = [copy.deepcopy(dict(item)) for item in documents if item]
    version = _version(originals)
    result: list[dict[str, Any]] = []
    warnings: list[str] = []
    kinds = set()
    for document in originals:
        kind = document.get("kind")
        if str(document.get("apiVersion", "")).startswith(GROUP) and kind not in KINDS:
            near = difflib.get_close_matches(str(kind), KINDS, 1)
            advice = f"did you mean {near[0]}?" if near else f"it knows {', '.join(KINDS)}"
            raise KubeadmError(f"a document has kind {kind!r}, which is none of kubeadm's; {advice}")
        kinds.add(kind)
        if kind == "KubeProxyConfiguration":
            warnings.append(_DROPPED)
            continue
        if kind == "InitConfiguration":
            _with_phase(document)
        elif kind == "ClusterConfiguration" and version == V1BETA4:
            document["proxy"] = {**(document.get("proxy") or {}), "disabled": True}
        elif kind == "UpgradeConfiguration":
            _with_phase(_with_phase(document, "apply"), "node")
        result.append(document)
    if "InitConfiguration" not in kinds and "UpgradeConfiguration" not in kinds:
        result.insert(0, _with_phase({"apiVersion": version, "kind": "InitConfiguration"}))
    if version == V1BETA3:
        warnings.insert(0, _FORGETFUL)
    elif "UpgradeConfiguration" not in kinds:
        empty: dict[str, Any] = {"apiVersion": version, "kind": "UpgradeConfiguration"}
        result.append(_with_phase(_with_phase(empty, "apply"), "node"))
    return Amended(result, tuple(warnings))


def upgrade_only(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the UpgradeConfiguration alone, for `kubeadm upgrade apply|node --config`, which takes no other kind."""
    return [dict(item) for item in amend(documents).documents if item.get("kind") == "UpgradeConfiguration"]


def amend_stored(cluster_configuration: Mapping[str, Any]) -> Amended:
    """Return the stored ClusterConfiguration (ConfigMap kube-system/kubeadm-config) with kube-proxy switched off."""
    document = copy.deepcopy(dict(cluster_configuration))
    version = _version([document])
    if version == V1BETA3:
        return Amended([document], (_FORGETFUL,))
    document["proxy"] = {**(document.get("proxy") or {}), "disabled": True}
    return Amended([document], ())
