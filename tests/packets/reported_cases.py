"""The reported faults in tests/cases as cases of the conformance runner.

``expect.yaml`` says in ``flows`` what one new connection must do on one node; each node becomes a case of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from devtools.conformance.corpus import Case, canonical, parse_case

FOLDER = Path(__file__).resolve().parents[1] / "cases"
CLUSTER_CIDRS = ["10.244.0.0/16", "fd00:10:244::/48"]
_VERDICTS = {"reject": "reject", "drop": "drop", "untouched": "pass"}


def folder(number: str) -> Path:
    (found,) = FOLDER.glob(f"{number}-*")
    return found


def manifests(file: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(file.read_text(encoding="utf-8")) if document is not None]


def expectations(number: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((folder(number) / "expect.yaml").read_text(encoding="utf-8"))
    return document


def case(
    name: str,
    node: str,
    objects: Sequence[Mapping[str, Any]],
    flows: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    **more: Any,
) -> Case:
    """Return the case that one node's part of the flows amounts to. Further keys are those of the corpus."""
    own = next(one for one in objects if one["kind"] == "Node" and one["metadata"]["name"] == node)
    addresses = [one["address"] for one in own["status"]["addresses"] if one["type"] == "InternalIP"]
    labels = own["metadata"].get("labels") or {}
    return parse_case(
        {
            "name": f"{name}/{node}",
            "node": {
                "name": node,
                "zone": labels.get("topology.kubernetes.io/zone"),
                "labels": labels,
                "ips": {"primary": addresses, "extra": []},
                "pod_cidr": (own.get("spec") or {}).get("podCIDRs") or [],
            },
            "config": {"clusterCIDR": CLUSTER_CIDRS, **(config or {})},
            "objects": list(objects),
            "probes": [probe(flow, addresses) for flow in flows if flow["node"] == node],
            **more,
        }
    )


def probe(flow: Mapping[str, Any], node_addresses: Sequence[str]) -> dict[str, Any]:
    where, _, protocol = flow["to"].partition("/")
    ip, _, port = where.rpartition(":")
    ip = canonical(ip.strip("[]"))
    kind, _, source = flow["from"].partition(" ")
    if kind == "host":
        source = next(one for one in node_addresses if (":" in one) == (":" in ip))
    expect: dict[str, Any]
    if "backends" in flow:
        expect = {"verdict": "dnat", "endpoints": [_canonical_endpoint(one) for one in flow["backends"]]}
        if "snat" in flow:
            expect["masquerade"] = flow["snat"]
    else:
        expect = {"verdict": _VERDICTS[flow["verdict"]]}
    return {
        "from": {"ip": source, "kind": {"host": "node", "pod": "pod-local", "external": "external"}[kind]},
        "to": {"ip": ip, "port": int(port), "protocol": protocol.upper()},
        "expect": expect,
    }


def _canonical_endpoint(text: str) -> str:
    ip, _, port = text.rpartition(":")
    address = canonical(ip.strip("[]"))
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def step(title: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], **more: Any) -> Any:
    """Return the step from one set of objects to another, in the corpus's form."""

    def key(one: Mapping[str, Any]) -> tuple[str, str | None, str]:
        return one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]

    gone = {key(one) for one in before} - {key(one) for one in after}
    return {
        "step": title,
        "modify": [one for one in after if one not in before],
        "delete": [{"kind": kind, "namespace": namespace, "name": name} for kind, namespace, name in sorted(gone)],
        "probes": [],
        **more,
    }
