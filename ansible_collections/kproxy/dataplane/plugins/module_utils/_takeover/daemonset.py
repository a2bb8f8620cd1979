# Copyright: (c) 2026, kproxy.dataplane contributors
# SPDX-License-Identifier: Apache-2.0
"""Whether a DaemonSet runs on a node, and how to keep it off one by a node label.

Follows the scheduler's rules for required terms (k8s.io/component-helpers/scheduling/corev1/nodeaffinity). Preferred
terms never keep a DaemonSet's pod away and are not looked at.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

_GREATER = {"Gt": lambda actual, wanted: actual > wanted, "Lt": lambda actual, wanted: actual < wanted}
_SHELLS = ("sh", "bash", "ash", "dash")
_REDIRECTION = re.compile(r"\d*[<>]")
_IMAGE = re.compile(r"(?:^|/)kube-proxy(?:-(?:amd64|arm|arm64|ppc64le|s390x))?(?:[:@]|$)")
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


def _expression(expression: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    key, operator = expression["key"], expression["operator"]
    wanted = expression.get("values") or []
    if operator == "Exists":
        return key in values
    if operator == "DoesNotExist":
        return key not in values
    if operator == "In":
        return values.get(key) in wanted
    if operator == "NotIn":
        return values.get(key) not in wanted
    if operator in _GREATER:
        try:
            return bool(_GREATER[operator](int(values[key]), int(wanted[0])))
        except (KeyError, ValueError, IndexError):
            return False
    raise ValueError(f"operator {operator!r} of node affinity is not known")


def _term(term: Mapping[str, Any], labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    expressions = term.get("matchExpressions") or []
    on_fields = term.get("matchFields") or []
    if not expressions and not on_fields:
        return False  # an empty term selects nothing
    wanted = [(item, labels) for item in expressions] + [(item, fields) for item in on_fields]
    return all(_expression(item, values) for item, values in wanted)


def _tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    for item in tolerations:
        if item.get("effect") not in (None, "", taint.get("effect")):
            continue
        if not item.get("key"):
            if item.get("operator") == "Exists":
                return True
            continue
        if item["key"] != taint["key"]:
            continue
        if item.get("operator", "Equal") == "Exists" or item.get("value", "") == taint.get("value", ""):
            return True
    return False


# The DaemonSet controller adds these to every pod of its own (pkg/controller/daemon/util/daemonset_util.go).
_ADDED_TOLERATIONS = tuple(
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists"}
    for name in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
) + ({"key": "node.kubernetes.io/network-unavailable", "operator": "Exists"},)


def selects(daemonset: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Say whether the DaemonSet puts a pod on the node. Raises ValueError for an operator that is not known."""
    metadata = node.get("metadata") or {}
    labels = metadata.get("labels") or {}
    fields = {"metadata.name": metadata.get("name", "")}
    pod = ((daemonset.get("spec") or {}).get("template") or {}).get("spec") or {}
    if pod.get("nodeName") not in (None, "", fields["metadata.name"]):
        return False
    if any(labels.get(key) != value for key, value in (pod.get("nodeSelector") or {}).items()):
        return False
    required = ((pod.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if required is not None and not any(
        _term(term, labels, fields) for term in required.get("nodeSelectorTerms") or []
    ):
        return False
    tolerations = (*(pod.get("tolerations") or []), *_ADDED_TOLERATIONS)
    taints = (node.get("spec") or {}).get("taints") or []
    return all(_tolerates(tolerations, taint) for taint in taints if taint.get("effect") in _BLOCKING_EFFECTS)


def command_line(container: Mapping[str, Any]) -> list[str]:
    """Return a container's command and arguments; the script of `sh -c` as the words that it runs."""
    words = [str(word) for word in (*(container.get("command") or []), *(container.get("args") or []))]
    if len(words) < 3 or words[0].rsplit("/", 1)[-1] not in _SHELLS or words[1] != "-c":
        return words
    try:
        return [word for word in shlex.split(words[2]) if word != "exec" and not _REDIRECTION.match(word)]
    except ValueError:  # a script that is more than one command
        return words


def runs_kube_proxy(container: Mapping[str, Any]) -> bool:
    """Whether a container's program is kube-proxy: by its command, or by its image where it has none."""
    words = command_line(container)
    if container.get("command"):
        return words[0].rsplit("/", 1)[-1] == "kube-proxy"
    return bool(_IMAGE.search(str(container.get("image") or "")))


def is_kube_proxy(daemonset: Mapping[str, Any]) -> bool:
    """Recognise kube-proxy's DaemonSet by name, label or the program it runs, unless it is for Windows nodes."""
    metadata = daemonset.get("metadata") or {}
    pod = ((daemonset.get("spec") or {}).get("template") or {}).get("spec") or {}
    if (pod.get("nodeSelector") or {}).get("kubernetes.io/os") == "windows":
        return False
    if metadata.get("name") == "kube-proxy" or (metadata.get("labels") or {}).get("k8s-app") == "kube-proxy":
        return True
    return any(map(runs_kube_proxy, pod.get("containers") or []))


def exclude_by_label(daemonset: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the DaemonSet with `key DoesNotExist` in every required term; unchanged when it is there already.

    Terms are alternatives, so each of them needs it; adding a term of its own would widen the selection.
    """
    changed = copy.deepcopy(dict(daemonset))
    pod = changed["spec"]["template"]["spec"]
    required = (
        pod.setdefault("affinity", {})
        .setdefault("nodeAffinity", {})
        .setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    )
    wanted = {"key": key, "operator": "DoesNotExist"}
    terms = required.setdefault("nodeSelectorTerms", [])
    if not terms:
        terms.append({})
    for term in terms:
        expressions = term.setdefault("matchExpressions", [])
        if wanted not in expressions:
            expressions.append(wanted)
    return changed
