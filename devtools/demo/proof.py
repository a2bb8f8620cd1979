"""Proof by packets: dial every frontend from pods, nodes and outside; those who answer must be the service table's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.config import ProxyConfig
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.frontend import (
    DNAT,
    DROP,
    REJECT,
    FrontendKey,
)
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.simulate import Outcome, Packet, simulate
from ansible_collections.kproxy.dataplane.plugins.module_utils._frontends.table import ServiceTable
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.address import format_address, parse_address
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.parse import Upsert, parse
from ansible_collections.kproxy.dataplane.plugins.module_utils._objects.protocol import NAMES
from devtools.lab import pods as lab_pods
from devtools.lab import ssh
from devtools.lab.pods import Dialled
from devtools.lab.topology import Lab, Node

#: Connections for each endpoint expected: the chance that one of five is never met is below one in 100,000.
DIALS_PER_ENDPOINT = 15
SETTINGS = {"clusterCIDR": "10.244.0.0/16,fd00:10:244::/48", "nodePortAddresses": ["primary"]}


@dataclass(frozen=True)
class Origin:
    """Where a connection starts: on a node, in one of its pods, or (node None) outside of the cluster."""

    node: Node | None
    pod: str | None = None

    def __str__(self) -> str:
        if self.node is None:
            return "outside"
        return f"pod {self.pod} on {self.node.name}" if self.pod else f"node {self.node.name}"


@dataclass(frozen=True)
class Probe:
    """One frontend dialled from one place; gate: the node whose service table decides."""

    origin: Origin
    gate: Node
    key: FrontendKey
    address: str
    expected: Outcome


@dataclass(frozen=True)
class Verdict:
    """What a probe met; wrong is empty if it is what the service table says."""

    probe: Probe
    wrong: str
    connections: int


def service_table(node: Node, manifests: Iterable[Mapping[str, Any]]) -> ServiceTable:
    """Return the service table that a node should have."""
    table = ServiceTable(ProxyConfig.from_mapping({"nodeName": node.name, **SETTINGS}))
    parsed = [parse(manifest) for manifest in manifests]
    table.apply([Upsert(obj) for obj in parsed if obj is not None])
    return table


def probes(manifests: Sequence[Mapping[str, Any]], members: Sequence[Node], clients: Mapping[Node, str]) -> list[Probe]:
    """Return a probe of every frontend from each client pod, from each member and, for NodePorts, from outside."""
    found: list[Probe] = []
    for node in members:
        table = service_table(node, manifests)
        origins = [Origin(node)]
        if node in clients:
            origins.append(Origin(node, clients[node]))
        for key in table.frontends:
            for origin in [*origins, *([Origin(None)] if not key.ip else [])]:
                address = format_address(key.ip) if key.ip else node.ipv4 if key.family == 4 else node.ipv6
                packet = Packet(_source(origin, clients, key.family), parse_address(address), key.protocol, key.port)
                local = {parse_address(node.ipv4), parse_address(node.ipv6)}
                found.append(Probe(origin, node, key, address, simulate(table, packet, local)))
    return found


def run_probes(lab: Lab, wanted: Iterable[Probe], pods: Mapping[str, str]) -> list[Verdict]:
    """Run probes, those of one origin side by side; pods maps an endpoint's address to its pod's name."""
    by_origin: dict[Origin, list[Probe]] = {}
    for probe in wanted:
        by_origin.setdefault(probe.origin, []).append(probe)
    with ThreadPoolExecutor(max_workers=4) as pool:
        series = pool.map(lambda probes: _run(lab, probes, pods), by_origin.values())
        return [verdict for verdicts in series for verdict in verdicts]


def pod_names_by_address(manifests: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return who has which address, from the slices' target references."""
    names = {}
    for manifest in manifests:
        if manifest["kind"] == "EndpointSlice":
            for endpoint in manifest.get("endpoints") or []:
                names[endpoint["addresses"][0]] = endpoint["targetRef"]["name"]
    return names


def kube_chains(lab: Lab, node: Node) -> list[str]:
    """Return the names of all KUBE- chains of a node, in both iptables back ends and in nftables."""
    script = "iptables-save; ip6tables-save; iptables-legacy-save; ip6tables-legacy-save; nft -t list ruleset"
    text = ssh.execute(lab, node, ["sh", "-c", f"({script}) 2>/dev/null"])
    return sorted(set(re.findall(r"^\s*(?::|chain )(KUBE-\S+)", text, re.MULTILINE)))


def services_in_nftables(lab: Lab, node: Node) -> list[str]:
    """Return whose the frontends in a node's nftables tables are, without repeats."""
    listing = json.loads(ssh.execute(lab, node, ["nft", "--json", "list", "maps"]))
    services = [item["map"] for item in listing["nftables"] if item.get("map", {}).get("name") == "services"]
    return sorted({key["elem"]["comment"] for one in services for key, _verdict in one.get("elem", [])})


def _source(origin: Origin, clients: Mapping[Node, str], family: int) -> bytes:
    if origin.node is None:
        return parse_address("10.77.0.1" if family == 4 else "fd00:77::1")
    if origin.pod is None:
        return parse_address(origin.node.ipv4 if family == 4 else origin.node.ipv6)
    network = origin.node.pod_cidr_ipv4 if family == 4 else origin.node.pod_cidr_ipv6
    # Any address of the node's pod range stands for its pods.
    return parse_address(network.partition("/")[0][:-1] + "9" if family == 4 else network.partition("/")[0] + "9")


def _run(lab: Lab, probes: Sequence[Probe], pods: Mapping[str, str]) -> list[Verdict]:
    origin = probes[0].origin
    names = [{pods[format_address(endpoint.ip)] for endpoint in probe.expected.endpoints} for probe in probes]
    targets = [
        (NAMES[probe.key.protocol], probe.address, probe.key.port, DIALS_PER_ENDPOINT * len(wanted) if wanted else 3)
        for probe, wanted in zip(probes, names, strict=True)
    ]
    met = lab_pods.dial_many(lab, origin.node, targets, pod=origin.pod)
    return [
        Verdict(probe, _compare(probe.expected, wanted, seen), seen.pods.total())
        for probe, wanted, seen in zip(probes, names, met, strict=True)
    ]


def _compare(expected: Outcome, wanted: set[str], met: Dialled) -> str:
    """Return what is wrong, or nothing."""
    reached = set(met.pods)
    if expected.verdict != DNAT:
        kind = {REJECT: "refused", DROP: "timeout"}.get(expected.verdict)
        if reached or (kind is not None and set(met.errors) != {kind}):
            return f"wanted {expected.verdict}, reached {sorted(reached)} with errors {met.errors}"
        return ""
    if met.errors:
        return f"wanted {sorted(wanted)}, got errors {met.errors}"
    if expected.frontend is not None and expected.frontend.affinity_seconds:
        return (
            "" if len(reached) == 1 and reached <= wanted else f"wanted one of {sorted(wanted)}, got {sorted(reached)}"
        )
    return "" if reached == wanted else f"wanted {sorted(wanted)}, reached {sorted(reached)}"
